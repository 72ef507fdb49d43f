"""A model of stages whose ops fail on rows that are marked, and batches with such a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests import models

ROWS, STAGES, MICROBATCHES = 16, 3, 4


class Fails(layers.Layer):
    """Passes on what it is given, unless a row is marked with a number of this layer: then an op raises.

    Args:
        forward: The mark that makes the forward pass fail.
        backward: The mark that makes the backward pass fail.
    """

    def __init__(self, *, forward: int, backward: int, **options: Any) -> None:
        super().__init__(**options)
        self.forward, self.backward = forward, backward

    def call(self, inputs: Any) -> Any:
        return _checked(self.forward, self.backward)(*inputs)


def _checked(forward: int, backward: int) -> Callable[[Any, Any], Any]:
    def spoiled(value: Any, mark: Any, wrong: int, place: str) -> Any:
        # The check must be on the way of the data: what only has to run before is dropped from a gradient.
        return tf.debugging.check_numerics(value + tf.where(tf.equal(mark, wrong), np.nan, 0.0), place)

    @tf.custom_gradient
    def checked(value: Any, mark: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return spoiled(upstream, mark, backward, "spoiled backward"), None

        return spoiled(value, mark, forward, "spoiled forward"), gradient

    return checked


def marked_model(*, stateful: bool) -> keras.Model:
    """Three stages, each with an op that fails on its marks: `10 + stage` forward, `20 + stage` backward."""
    x, mark = keras.Input((models.WIDTH,), name="x"), keras.Input((1,), name="mark")
    y = x
    for stage in range(STAGES):
        y = layers.Dense(8, activation="tanh", name=f"stage_{stage}_dense")(y)
        if stateful:
            y = layers.BatchNormalization(name=f"stage_{stage}_normalize")(y)
            y = layers.Dropout(0.2, seed=stage, name=f"stage_{stage}_drop")(y)
        y = Fails(forward=10 + stage, backward=20 + stage, name=f"stage_{stage}_fails")([y, mark])
    y = layers.Dense(models.CLASSES, name=f"stage_{STAGES - 1}_scores")(y)
    return models.compiled(keras.Model({"x": x, "mark": mark}, y), weighted=False)


def marked(mark: int, microbatch: int = 0) -> tuple[Any, Any]:
    """A batch with one row marked, in that microbatch; the mark 0 is nobody's."""
    x, y = models.vectors(ROWS)
    marks = np.zeros((ROWS, 1), np.float32)
    marks[microbatch * ROWS // MICROBATCHES] = mark
    return {"x": x, "mark": marks}, y
