"""Which op each op of a gradient is said to differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.gradients import GradientRecorder
from partitioner.capture.trace.objective import training_objective
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.ir.step import StepKind


def recorded(function: Callable[[Any], Any]) -> tuple[Any, dict[str, str]]:
    """The graph of a function of a (2, 3) tensor and of its gradient, and what was recorded."""
    recorder = GradientRecorder()

    def step(x: Any) -> Any:
        with recorder.recording(tf.compat.v1.get_default_graph()):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([2, 3])).graph
    return graph, recorder.differentiates()


def test_the_ops_of_a_gradient_belong_to_the_op_that_it_is_of() -> None:
    graph, found = recorded(lambda x: tf.tanh(tf.exp(x, name="inner"), name="outer"))
    assert {graph.get_operation_by_name(name).type: op for name, op in found.items()} == {
        "TanhGrad": "outer",
        "Mul": "inner",
    }


def test_a_custom_gradient_belongs_to_what_it_is_of() -> None:
    @tf.custom_gradient
    def doubled(x: Any) -> Any:
        return tf.identity(x), lambda dy: tf.multiply(dy, 2.0, name="twice")

    graph, found = recorded(lambda x: tf.exp(doubled(tf.tanh(x, name="before"))))
    (twice,) = (op.name for op in graph.get_operations() if op.name.endswith("twice"))
    assert graph.get_operation_by_name(found[twice]).type == "IdentityN"


def test_the_backward_call_of_a_function_belongs_to_its_call() -> None:
    """In a step of the model's own it was said to be the gradient of what the call reads."""
    graph, found = recorded(lambda x: tf.exp(tf.function(tf.sin)(tf.tanh(x, name="before")), name="after"))
    calls = [op.name for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert len(calls) == 2
    assert found[calls[1]] == calls[0]


def test_a_second_recording_replaces_the_first() -> None:
    recorder = GradientRecorder()

    def step(x: Any) -> Any:
        with recorder.recording(tf.compat.v1.get_default_graph()):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.tanh(x)
            return tape.gradient(y, x)

    for size in (2, 3):
        graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([size])).graph
    assert {graph.get_operation_by_name(name).type for name in recorder.differentiates()} == {"TanhGrad"}


def captured(model: keras.Model) -> OpGraph:
    model.compile(optimizer="sgd", loss="mse")
    specs = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 4]), None)
    objective = training_objective(model)
    return capture_step(model, StepKind.TRAIN, specs, batch_size=2, objective=objective).graph


class _Slope(keras.layers.Layer):
    """The slope of a cube, from a tape of its own."""

    def call(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            cubed = x * x * x
        return tape.gradient(cubed, x)


def test_the_tape_of_a_layer_belongs_to_the_forward_pass() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(4, name="last")(_Slope(name="slope")(keras.layers.Dense(4)(x))))
    slope = [op for op in captured(model).ops if op.layer == "slope"]
    assert {op.phase for op in slope} == {Phase.FORWARD, Phase.BACKWARD}
    forward = [op for op in slope if op.phase is Phase.FORWARD]
    assert [op.type for op in forward].count("Mul") >= 4  # two of the cube, and those of its slope
    assert not any(op.differentiates for op in forward)


def test_frozen_layers_in_front_are_not_differentiated() -> None:
    frozen = [keras.layers.Dense(4, activation="tanh", trainable=False, name=f"frozen_{i}") for i in range(2)]
    model = keras.Sequential([keras.Input((4,)), *frozen, keras.layers.Dense(4, name="trained")])
    assert {op.layer for op in captured(model).ops if op.phase is Phase.BACKWARD and op.layer} == {"trained"}
