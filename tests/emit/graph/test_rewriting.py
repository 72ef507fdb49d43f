"""What TensorFlow rewrites in placed steps: nothing that joins ops, whoever calls them, whatever users have set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from partitioner.verification.audit import executed_ops, misplaced_ops

ROWS = 8


def swish_net() -> keras.Model:
    """What the remapper fuses, and sums that the arithmetic optimizer merges."""
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, activation="relu", padding="same")(x)
    y = layers.Conv2D(4, 3, activation="swish", padding="same")(x)
    x = layers.Add()([x, y, layers.Conv2D(4, 1)(y), layers.Conv2D(4, 1)(x)])
    x = layers.Dense(6, activation="gelu")(layers.Flatten()(x))
    model: Any = keras.Model(inputs, layers.Dense(2, activation="relu")(x))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def powers() -> keras.Model:
    """Powers with every exponent that is written out, and their gradients; no convolutions, which oneDNN fuses."""
    gelu = partial(keras.activations.gelu, approximate=True)
    x = inputs = keras.Input((6,))
    for _ in range(2):
        x = layers.Dense(7, activation=gelu)(x)
    x = layers.Lambda(lambda t: t**2 + (1 + t**2) ** 0.5 + (1 + t * t) ** -0.5 + (2 + t * t) ** -1)(x)
    model: Any = keras.Model(inputs, layers.Dense(2)(x))
    model.compile("adam", "mse", jit_compile=False)
    return model


def placed_on(devices: list[str], build: Callable[[], keras.Model], *, spread: bool = False) -> Any:
    """A model on these devices, with `spread` every op on another than the op before it."""
    keras.utils.set_random_seed(0)
    model = build()
    options = asked(devices=devices, batch_size=ROWS, strategy="single" if len(devices) == 1 else "layer-split")
    plan = partitioner.plan(model, time_limit=3, **options)
    names = [device.name for device in plan.devices]
    if spread:
        plan = replace(plan, placement={op: names[index % len(names)] for index, op in enumerate(plan.placement)})
    return partitioner.place(model, plan)


@pytest.fixture(scope="module")
def apart() -> Any:
    return placed_on(["CPU:1", "CPU:2", "CPU:3"], swish_net, spread=True)


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((ROWS, 8, 8, 3), np.float32), generator.standard_normal((ROWS, 2), np.float32)


def audited(placed: Any, run: Callable[[], Any]) -> tuple[set[str], tuple[str, ...]]:
    """The types of the ops that ran, and ops that ran elsewhere than planned."""
    _, executed = executed_ops(run)
    executed = {name: ran for name, ran in executed.items() if "functional" in name}  # layers', not Keras' metrics'
    planned = placed.program.execution(placed.program.step(*placed.program.signatures()[0])).placement
    return {kind for kind, _ in executed.values()}, misplaced_ops(executed, planned)[1]


def calls(placed: Any) -> Iterator[Callable[[], Any]]:
    """`fit`, a call, and both in functions of the user."""
    x, y = map(tf.constant, data())
    yield lambda: placed.fit(x, y, batch_size=ROWS, verbose=0)
    yield lambda: placed(x)
    step = tf.function(lambda *batch: placed.train_step(batch), autograph=False)
    yield lambda: step(x, y)
    outputs = tf.function(lambda rows: placed(rows) + 1.0, autograph=False)
    yield lambda: outputs(x)


def test_no_op_joins_ops_of_two_devices_wherever_it_is_called(apart: Any) -> None:
    for run in calls(apart):
        kinds, wrong = audited(apart, run)
        assert not wrong
        assert not [kind for kind in kinds if "Fused" in kind]


def test_a_fit_is_that_of_keras_but_for_rounding() -> None:
    """Keras' own step is fused and its sums are merged, in an order that follows from names."""
    x, y = data()
    keras.utils.set_random_seed(0)
    model: Any = swish_net()
    model.fit(x, y, batch_size=ROWS, epochs=3, verbose=0)
    placed = placed_on(["CPU:1"], swish_net)
    placed.fit(x, y, batch_size=ROWS, epochs=3, verbose=0)
    for variable, expected in zip(placed.model.variables, model.variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("devices", [["CPU:1"], ["CPU:1", "CPU:2"]], ids=["one device", "two devices"])
def test_powers_round_as_in_the_unplaced_model(devices: list[str]) -> None:
    placed = placed_on(devices, powers)
    found = partitioner.verify(placed.model, placed, num_steps=2)
    assert found.passed
    assert (found.outputs_max_abs_diff, found.gradients_max_abs_diff, found.weights_max_abs_diff) == (0, 0, 0)


def test_options_of_the_process_are_the_users(apart: Any) -> None:
    assert apart.is_placed
    assert {"remapping", "arithmetic_optimization"}.isdisjoint(tf.config.optimizer.get_experimental_options())
