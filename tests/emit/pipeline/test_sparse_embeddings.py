"""Gradients of embeddings stay sparse through microbatches: Adam moves the rows that a batch looks up, no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from tests import models
from tests.embeddings import ROWS, embedded, tokens
from tests.twins import relative, weights

Batches = Sequence[tuple[np.ndarray, np.ndarray]]


def embedded_twice() -> keras.Model:
    """The last stage looks up rows of the matrix that the first one embeds with."""
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    embedding = layers.Embedding(models.TOKENS, 8, name="embedding")
    x = layers.Dense(8, activation="tanh", name="hidden")(layers.Flatten(name="flat")(embedding(inputs)))
    again = embedding(layers.Lambda(lambda ids: ids[:, ::2], name="some")(inputs))
    x = layers.Concatenate(name="both")([x, layers.Flatten(name="flat_again")(again)])
    return keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x))


ADAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.05},
}


def train_densified(model: Any, batches: Batches) -> None:
    """What a step in microbatches would do that sums the gradients of an embedding as whole matrices."""
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables)


@pytest.mark.parametrize("options", ADAMS.values(), ids=ADAMS)
@pytest.mark.parametrize("build", [embedded, embedded_twice])
def test_gradients_of_embeddings_stay_sparse(build: Callable[[], keras.Model], options: dict[str, Any]) -> None:
    def compiled() -> keras.Model:
        keras.utils.set_random_seed(3)
        return models.compiled(build(), keras.optimizers.Adam(0.02, **options))

    batches = [(tokens(step), np.arange(ROWS) % models.CLASSES) for step in range(4)]
    unplaced, densified, twin = compiled(), compiled(), compiled()
    plan = partitioner.plan(
        twin,
        **asked(
            devices=["CPU:1", "CPU:2"],
            batch_size=ROWS,
            microbatches=4,
            schedule="1f1b",
            strategy="layer-split",
            pins={"embedding": "CPU:1", "hidden|scores": "CPU:2"},
            time_limit=4,
        ),
    )
    placed = partitioner.place(twin, plan)
    for model in (unplaced, placed):
        for x, y in batches:
            model.train_on_batch(x, y)
    train_densified(densified, batches)
    found, expected, dense = (weights(model) for model in (twin, unplaced, densified))
    assert [stage.device[-5:] for stage in plan.stages] == ["CPU:1", "CPU:2"]
    assert relative(found, expected) < 1e-6
    assert relative(dense, expected) > 1e-5


def positions_and_dropout() -> keras.Model:
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 8, name="embedding")(inputs) + _Positions(name="positions")(inputs)
    x = layers.Flatten(name="flat")(layers.Dropout(0.2, seed=1, name="dropout")(x))
    return keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x))


class _Positions(layers.Layer):
    """Looks up the same rows whatever it is called with."""

    def build(self, _shape: Any) -> None:
        self.table = layers.Embedding(models.LENGTH, 8)
        self.table.build((models.LENGTH,))

    def call(self, _inputs: Any) -> Any:
        return self.table(keras.ops.arange(models.LENGTH))


@pytest.mark.parametrize("options", [{"strategy": "layer-split", "microbatches": 4}, {"strategy": "mirrored"}], ids=str)
def test_positions_beside_dropout_pass_the_verification(options: dict[str, Any]) -> None:
    """The reference had each position once per microbatch, and Adam squared its parts in place of their sum."""
    keras.utils.set_random_seed(3)
    model = models.compiled(positions_and_dropout(), keras.optimizers.Adam(0.02))
    placed = partitioner.auto_place(
        model, **asked(devices=["CPU:1", "CPU:2"], batch_size=ROWS, time_limit=4, **options)
    )
    found = partitioner.verify(model, placed)
    assert found.passed
    assert found.weights_max_rel_diff < 1e-6
