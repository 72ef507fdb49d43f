"""The unplaced model, the way Keras trains it: with a tape and no devices. The placed one is held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.verification.data import as_dense, flat_arrays


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What a run of several steps produced, as float64 arrays: of the first step, and of the variables at the end."""

    outputs: list[np.ndarray]
    loss: list[np.ndarray]
    gradients: list[np.ndarray]
    weights: list[np.ndarray]


@contextmanager
def restored(variables: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Put `variables` back to their present values at the end, and whenever the yielded function is called."""
    saved = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    try:
        yield restore
    finally:
        restore()


def nudged(restore: Callable[[], None], variables: Sequence[Any]) -> Callable[[], None]:
    """`restore`, and then every float of `variables` one unit in the last place larger."""

    def restore_and_nudge() -> None:
        restore()
        for variable in variables:
            value = variable.numpy()
            variable.assign(np.nextafter(value, np.full_like(value, np.inf)))

    return restore_and_nudge


def reference_functions(
    model: keras.Model,
    compute_loss: Callable[..., Any],
    optimizer: Any,
    specs: tuple[Any, Any],
    *,
    num_microbatches: int = 1,
) -> tuple[Any, Any]:
    """`gradients(x, y)` -> (outputs, loss, gradients) and `train(x, y)` -> loss, of the unplaced model.

    Gradients are those the optimizer is given: of the scaled loss where it scales. Both are traced for `specs`, whose
    batch size is open as in `fit`: with a known one TensorFlow divides by constants, and rounds otherwise. With
    microbatches, the model runs on one after the other and the gradients are averaged before the update.
    """

    def differentiated(x: Any, y: Any) -> tuple[Any, Any, list[Any]]:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = compute_loss(x, y, y_pred, None, True)
            scaled = optimizer.scale_loss(loss)
        return y_pred, loss, tape.gradient(scaled, model.trainable_variables)

    def accumulated(x: Any, y: Any) -> tuple[Any, Any, list[Any]]:
        if num_microbatches == 1:
            return differentiated(x, y)
        parts = [differentiated(*part) for part in _equal_parts((x, y), num_microbatches)]
        outputs, losses, gradients = zip(*parts, strict=True)
        y_pred = tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *outputs)
        return y_pred, tf.add_n(losses) / num_microbatches, [_mean(one) for one in zip(*gradients, strict=True)]

    @tf.function(autograph=False, input_signature=list(specs))
    def gradients(x: Any, y: Any) -> tuple[Any, Any, Any]:
        y_pred, loss, found = accumulated(x, y)
        return y_pred, loss, [None if g is None else as_dense(g, v.shape) for g, v in _pairs(found, model)]

    @tf.function(autograph=False, input_signature=list(specs))
    def train(x: Any, y: Any) -> Any:
        _, loss, found = accumulated(x, y)
        optimizer.apply_gradients(list(_pairs(found, model)))
        return loss

    return gradients, train


def _equal_parts(batch: Any, count: int) -> list[Any]:
    flat = [tf.split(value, count) for value in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, [parts[index] for parts in flat]) for index in range(count)]


def _mean(gradients: Sequence[Any]) -> Any:
    """Mean of the gradients of microbatches; a sparse one stays sparse, which some optimizers treat otherwise."""
    if gradients[0] is None:
        return None
    if isinstance(gradients[0], tf.IndexedSlices):
        values = tf.concat([g.values for g in gradients], axis=0) / len(gradients)
        return tf.IndexedSlices(values, tf.concat([g.indices for g in gradients], axis=0), gradients[0].dense_shape)
    return tf.add_n(gradients) / len(gradients)


def _pairs(gradients: Sequence[Any], model: keras.Model) -> Iterator[tuple[Any, Any]]:
    return zip(gradients, model.trainable_variables, strict=True)


def run_reference(
    gradients: Any,
    train: Any,
    batches: Sequence[tuple[Any, Any]],
    variables: Sequence[Any],
    restore: Callable[[], None],
) -> Trajectory:
    """Gradients on the first batch, then one training step per batch, from the restored state."""
    restore()
    outputs, loss, found = gradients(*batches[0])
    restore()
    for batch in batches:
        train(*batch)
    return Trajectory(
        outputs=flat_arrays(outputs),
        loss=flat_arrays(loss),
        gradients=flat_arrays(found),
        weights=flat_arrays([variable.value for variable in variables]),
    )
