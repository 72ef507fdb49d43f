"""One step for several batch sizes, and steps whose batch cannot be cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import models
import pytest
import tensorflow as tf
from captures import capture
from keras import layers, ops

from partitioner.capture.lower.batching import BatchSizes, graph_for_batch
from partitioner.ir.step import StepKind


@pytest.mark.parametrize("name", ["mlp", "resnet", "transformer", "lstm", "dict_of_outputs", "subclassed", "float16"])
def test_a_graph_for_another_batch_is_what_capturing_that_batch_gives(name: str) -> None:
    model = models.MODELS[name]()
    step = capture(model, batch_size=8)
    assert graph_for_batch(step, 8) == step.graph
    # Op names differ from trace to trace, so all three graphs come from one trace.
    smaller, larger = graph_for_batch(step, 3), graph_for_batch(step, 16)
    assert graph_for_batch(replace(step, graph=smaller), 16) == larger
    expected = capture(model, batch_size=3).graph
    assert smaller.batch_size == expected.batch_size == 3
    assert [tensor.spec for tensor in smaller.tensors] == [tensor.spec for tensor in expected.tensors]
    assert [op.type for op in smaller.ops] == [op.type for op in expected.ops]
    assert len(smaller.assumed_shapes) == len(expected.assumed_shapes)
    assert smaller.ops == step.graph.ops


@pytest.mark.parametrize("name", ["mlp", "resnet", "transformer", "lstm", "dict_of_outputs", "float16"])
def test_sizes_in_proportion_are_those_that_tensorflow_infers(name: str) -> None:
    step = capture(models.MODELS[name](), batch_size=8)
    sizes = BatchSizes(step)
    for rows in (8, 4, 2, 3, 16):
        inferred = graph_for_batch(step, rows)
        assert sizes(rows) == inferred
        assert sizes(rows).specs == inferred.specs


class Warm(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that a function of TensorFlow chooses."""

    def __call__(self, step: Any) -> Any:
        return tf.cond(step < 10, lambda: tf.constant(0.1), lambda: 1.0 / tf.cast(step, "float32"))

    def get_config(self) -> dict[str, Any]:
        return {}


def test_functions_that_updates_run_are_kept_for_another_batch() -> None:
    model = models.mlp()
    model.compile(keras.optimizers.SGD(Warm()), "sparse_categorical_crossentropy", jit_compile=False)
    step = capture(model, batch_size=8)
    assert step.graph.runs
    assert graph_for_batch(step, 8) == step.graph
    assert graph_for_batch(step, 4).runs == step.graph.runs


def test_sizes_that_grow_with_the_square_of_the_batch_are_inferred() -> None:
    inputs = keras.Input((3,))
    pairs = layers.Lambda(lambda x: ops.reshape(ops.matmul(x, ops.transpose(x)), (-1, 1)))(layers.Dense(2)(inputs))
    rows = layers.Lambda(lambda one: ops.sum(ops.reshape(one[0], (-1, ops.shape(one[1])[0])), 1, keepdims=True))(
        [pairs, inputs]
    )
    model = keras.Model(inputs, rows)
    step = capture(model, StepKind.PREDICT)
    sizes = BatchSizes(step)
    for rows in (4, 2, 1):
        assert sizes(rows) == graph_for_batch(step, rows)


def test_activations_follow_the_batch_and_parameters_do_not() -> None:
    step = capture(models.mlp(), batch_size=8)
    graph = graph_for_batch(step, 2)
    assert graph.tensor[step.outputs["y_pred"]].spec.shape == (2, models.CLASSES)
    assert graph.tensor[step.inputs[0]].spec.shape == (2, models.WIDTH)
    for gradient, variable in zip(step.outputs["gradients"], step.trainable, strict=True):
        assert graph.tensor[gradient].spec.shape == tuple(variable.shape)
    assert graph.variables == step.graph.variables


@pytest.mark.parametrize("name", ["mlp", "transformer", "lstm", "dict_of_outputs"])
def test_an_open_batch_can_be_cut(name: str) -> None:
    assert capture(models.MODELS[name]()).fixed_batch == ""


def test_an_input_with_a_fixed_batch_says_so() -> None:
    inputs = keras.Input(batch_shape=(32, 4), name="rows")
    model = keras.Model(inputs, layers.Dense(2)(inputs))
    model.compile("sgd", "mse", jit_compile=False)
    assert capture(model, batch_size=32).fixed_batch == "input 'rows' has the fixed batch size 32"


class Total(layers.Layer):
    """Sums over the rows of the batch."""

    def call(self, x: Any) -> Any:
        return ops.sum(x, axis=0)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape[1:]


@pytest.mark.parametrize(("sizes", "shape"), [((3,), "(3,)"), ((), "()")])
def test_an_output_without_rows_says_so(sizes: tuple[int, ...], shape: str) -> None:
    inputs = keras.Input((3,))
    x = inputs if sizes else layers.Lambda(lambda t: ops.sum(t, axis=1), output_shape=())(inputs)
    model = keras.Model(inputs, Total(name="total")(x))
    step = capture(model, StepKind.PREDICT)
    assert step.fixed_batch == f"output 'total' has no batch axis: shape {shape}"
