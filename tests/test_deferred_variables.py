"""Deferred variables: no value while nothing needs it, then the value of the variable that is not deferred."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from partitioner.deferred_variables import deferred_values, handles_only
from tests.models import DATA, MODELS
from tests.values import with_values


def deferred(build: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(0)
    with deferred_values():
        return build()


def plain(build: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(0)
    return build()


def assert_same(variables: Any, others: Any) -> None:
    for variable, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy(), err_msg=variable.path)


def perceptron() -> keras.Model:
    """Its initializers draw from one generator, so values depend on the order in which they run."""
    drawn = keras.random.SeedGenerator(3)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, kernel_initializer=keras.initializers.RandomNormal(seed=drawn)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(8, kernel_initializer=keras.initializers.GlorotUniform(seed=drawn)),
        ]
    )


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer", "tied", "nested", "float16"])
def test_values_are_those_of_the_model_that_is_not_deferred(name: str) -> None:
    model = deferred(MODELS[name])
    assert not with_values(model.variables)
    assert_same(model.variables, plain(MODELS[name]).variables)


def test_initializers_that_share_a_generator_give_the_same_when_read_in_order() -> None:
    assert_same(deferred(perceptron).variables, plain(perceptron).variables)


def test_a_model_that_is_trained_while_it_is_built() -> None:
    x, y = DATA["mlp"](16)

    def trained() -> keras.Model:
        model = MODELS["mlp"]()
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        return model

    assert_same(deferred(trained).variables, plain(trained).variables)


def test_a_layer_that_reads_a_value_while_it_is_built() -> None:
    class Scaled(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.table = self.add_weight(shape=(4, 4), initializer="glorot_uniform")
            self.norm = float(tf.norm(self.table))

        def call(self, inputs: Any) -> Any:
            return inputs @ keras.ops.convert_to_tensor(self.table) / self.norm

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(3)])

    model, other = deferred(build), plain(build)
    assert len(with_values(model.variables)) == 1
    assert model.layers[0].norm == other.layers[0].norm


def test_loaded_weights_take_the_place_of_initial_ones(tmp_path: Path) -> None:
    saved = plain(MODELS["mlp"])
    saved.save_weights(tmp_path / "it.weights.h5")
    model = deferred(MODELS["mlp"])
    model.load_weights(tmp_path / "it.weights.h5")
    assert_same(model.variables, saved.variables)


def test_a_value_that_is_overwritten_is_not_made() -> None:
    def never(shape: Any, dtype: Any = None) -> Any:
        raise AssertionError

    with deferred_values():
        variable = keras.Variable(never, shape=(3,), dtype="float32")
    variable.assign([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0, 3.0])


def test_an_initializer_that_fails_is_asked_again() -> None:
    answers = iter([RuntimeError("no file"), np.ones(3, np.float32)])

    def late(shape: Any, dtype: Any = None) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with deferred_values():
        variable = keras.Variable(late, shape=(3,), dtype="float32")
    with pytest.raises(RuntimeError, match="no file"):
        variable.numpy()
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))


def test_a_function_that_is_traced_with_handles_only_makes_no_value_but_runs_with_one() -> None:
    with deferred_values():
        variable = keras.Variable("ones", shape=(3,), dtype="float32")

    @tf.function
    def doubled() -> Any:
        return variable.value * 2

    with handles_only():
        doubled.get_concrete_function()
    assert not with_values([variable])
    assert float(tf.reduce_sum(variable.value)) == 3
    np.testing.assert_array_equal(doubled(), np.full(3, 2.0))


def test_a_deferred_model_is_exported(tmp_path: Path) -> None:
    model = deferred(MODELS["mlp"])
    model.export(tmp_path / "exported", verbose=False)
    x, _ = DATA["mlp"](4)
    loaded = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(loaded.serve(x), plain(MODELS["mlp"]).predict(x, verbose=0), rtol=1e-5)


def test_variables_of_a_distribution_strategy_are_its_own() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with deferred_values(), strategy.scope():
        variable: Any = keras.Variable("ones", shape=(2,), dtype="float32")
    assert len(variable.value.values) == 2
