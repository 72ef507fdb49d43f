"""Methods beside a model's steps, such as `generate`: layers run where their weights are, with the model's numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import partitioner
from tests.twins import cpus, equal_pair, weights

TOKENS, LENGTH = 11, 6


class Writer(keras.Model):
    """A causal model that writes token after token, in a loop of TensorFlow, as keras_hub's do."""

    def __init__(self) -> None:
        token = keras.Input((LENGTH,), dtype="int32", name="token")
        x = layers.Embedding(TOKENS, 8, name="embedded")(token)
        x = layers.Dense(16, activation="relu", name="first")(x)
        x = layers.Dense(16, activation="relu", name="second")(x)
        super().__init__(token, layers.Dense(TOKENS, name="scores")(x), name="writer")
        self.generate_function: Any = None

    def after(self, token: Any) -> Any:
        """The most probable token after each."""
        for name in ("embedded", "first", "second", "scores"):
            token = self.get_layer(name)(token)
        return tf.argmax(token, axis=-1, output_type=tf.int32)

    def generate(self, first: Any, count: int = 5) -> np.ndarray:
        """`count` tokens after each of `first` (shape `(rows,)`)."""
        if self.generate_function is None:

            @tf.function(jit_compile=self.jit_compile)
            def written(first: Any) -> Any:
                tokens = tf.TensorArray(tf.int32, count)
                current = first
                for index in tf.range(count):
                    current = self.after(current)
                    tokens = tokens.write(index, current)
                return tf.transpose(tokens.stack())

            self.generate_function = written
        return self.generate_function(tf.constant(first)).numpy()


def build() -> keras.Model:
    model = Writer()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    return model


@pytest.fixture
def pair() -> tuple[Any, Any]:
    """The unplaced writer, which is compiled with XLA, and one placed on two devices after it has written."""
    plain, other = equal_pair(build)
    other.generate([1, 2])
    pins = {"embedded|first": cpus(2)[0], "second|scores": cpus(2)[1]}
    constraints = partitioner.Constraints(pins=pins)
    return plain, partitioner.auto_place(other, cpus(2), batch_size=4, constraints=constraints, time_limit=5)


def test_generated_tokens_are_those_of_the_model_before_and_after_training(pair: tuple[Any, Any]) -> None:
    plain, placed = pair
    np.testing.assert_array_equal(placed.generate([1, 2, 3]), plain.generate([1, 2, 3]))
    tokens = np.arange(4 * LENGTH, dtype="int32").reshape(4, LENGTH) % TOKENS
    placed.fit(tokens, (tokens * 3 + 1) % TOKENS, epochs=30, verbose=0)
    plain.set_weights(placed.get_weights())
    assert len(set(placed.generate([1, 2, 3]).ravel())) > 1
    np.testing.assert_array_equal(placed.generate([1, 2, 3]), plain.generate([1, 2, 3]))


def test_each_layer_of_a_generating_loop_runs_where_its_weights_are(pair: tuple[Any, Any]) -> None:
    _, placed = pair
    placed.generate([1, 2])
    function = placed.model.generate_function.get_concrete_function(tf.TensorSpec([2], tf.int32))
    ops = [op for called in function.graph.as_graph_def().library.function for op in called.node_def]
    devices = {op.name.split("/")[1]: op.device.rpartition("/device:")[2] for op in ops if op.op == "MatMul"}
    assert devices == {"first_1": cpus(2)[0], "second_1": cpus(2)[1], "scores_1": cpus(2)[1]}


def test_the_layers_are_as_before(pair: tuple[Any, Any]) -> None:
    _, placed = pair
    placed.generate([1, 2])
    assert placed.model.jit_compile
    assert not any("call" in vars(layer) for layer in placed.model.layers)


def test_the_unplaced_model_sees_what_the_placed_one_learns() -> None:
    """Its `predict` had been traced before the variables moved, and used those that it had then."""
    _, model = equal_pair(build)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    tokens = np.arange(4 * LENGTH, dtype="int32").reshape(4, LENGTH) % TOKENS
    model.fit(tokens, tokens, verbose=0)
    model.predict(tokens, verbose=0)
    placed = partitioner.auto_place(model, cpus(2), batch_size=4, strategy="layer-split", time_limit=5)
    placed.fit(tokens, tokens, epochs=3, verbose=0)
    np.testing.assert_allclose(model.predict(tokens, verbose=0), placed.predict(tokens, verbose=0), rtol=1e-5)
    before = weights(model)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(tokens, tokens, verbose=0)
    assert np.abs(weights(placed) - before).max() > 0


def test_a_method_that_calls_the_placed_model_again(pair: tuple[Any, Any]) -> None:
    """Both leave the layers as they found them."""
    _, placed = pair
    type(placed.model).nested = lambda _self: placed.generate([1, 2])
    try:
        np.testing.assert_array_equal(placed.nested(), placed.generate([1, 2]))
    finally:
        del type(placed.model).nested
    assert not any("call" in vars(layer) for layer in placed.model.layers)
