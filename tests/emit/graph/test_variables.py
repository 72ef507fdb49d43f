"""Variables move to their devices, whoever owns them; what XLA compiles finds them there."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import partitioner
from partitioner.emit.graph.variables import move_variables
from partitioner.errors import ModelError
from partitioner.ir.devices import DeviceName
from tests.twins import cpus, equal_pair

ROWS = 8


class Counting(layers.Layer):
    """A layer whose state is TensorFlow's own: Keras does not know it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False, name="calls")
        self.factor = tf.Variable(2.0, trainable=False, name="factor")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x * self.factor.assign(self.factor * 1.5)


def counting() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8), Counting(name="counting"), layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def placed(model: keras.Model, **options: Any) -> Any:
    return partitioner.auto_place(
        model, cpus(2), batch_size=ROWS, strategy="layer-split", microbatches=1, time_limit=10, **options
    )


def test_a_variable_that_no_keras_layer_owns_moves() -> None:
    plain, other = equal_pair(counting)
    split = placed(other, constraints=partitioner.Constraints(pins={"counting": "CPU:2"}))
    state = other.layers[1]
    assert DeviceName.parse(state.factor.device) == DeviceName.parse("CPU:2")
    assert partitioner.verify(other, split).passed
    x = np.ones((2 * ROWS, 6), "float32")
    for model in (plain, split):
        model.fit(x, x[:, :2], batch_size=ROWS, shuffle=False, verbose=0)
    assert state.calls.numpy() == plain.layers[1].calls.numpy() == 2
    assert state.factor.numpy() == plain.layers[1].factor.numpy() == 4.5
    for mine, theirs in zip(plain.get_weights(), split.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_replicas_of_a_variable_that_no_keras_layer_owns_are_refused() -> None:
    variable = tf.Variable(1.0, name="lonely")
    with pytest.raises(ModelError, match=r"'lonely:0' is a tf\.Variable that Keras does not own"):
        move_variables([(variable, ["CPU:1", "CPU:2"])])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_grouped_convolutions_that_keras_compiles_with_xla_read_variables_of_other_devices(policy: str) -> None:
    """A ConvNeXt in bfloat16 failed: "Trying to access resource ... located in CPU:1 from CPU:0"."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        x = inputs = keras.Input((8, 8, 4))
        for name in ("first", "second"):
            x = layers.Conv2D(8, 3, groups=2, name=name)(x)
        outputs = layers.Dense(2, dtype="float32")(layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, outputs)
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    model.compile("sgd", "mse")
    split = placed(model, constraints=partitioner.Constraints(pins={"second": "CPU:2", "first": "CPU:1"}))
    verification = partitioner.verify(model, split)
    assert verification.passed
    assert not verification.misplaced_ops
