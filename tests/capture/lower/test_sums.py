"""What many layers read gets its gradient in steps, along the layers; what few read, and weights, at once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from captures import capture
from keras import layers

from partitioner.capture.lower.sums import sum_in_steps
from partitioner.ir.op_graph import Op, OpGraph, Phase
from tests import models

NUM_READERS = 6


def read_by(num_readers: int) -> keras.Model:
    """A chain of layers, each of which reads what the first one made, as the blocks of a decoder do."""
    inputs = keras.Input((models.WIDTH,))
    memory = layers.Dense(8, activation="relu", name="memory")(inputs)
    x = layers.Dense(8, name="start")(inputs)
    for index in range(num_readers):
        x = layers.Multiply()([x, layers.Dense(8, activation="relu", name=f"reader_{index}")(memory)])
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))


def sums_of(graph: OpGraph) -> list[Op]:
    return [op for op in graph.ops if op.type == "AddN" and op.phase is Phase.BACKWARD]


def makers(graph: OpGraph, op: Op) -> list[Op]:
    return [graph.op[graph.tensor[name].producer] for name in op.inputs]


def test_each_step_is_of_the_layers_whose_parts_it_adds() -> None:
    graph = capture(read_by(NUM_READERS)).graph
    steps = sums_of(graph)
    added = [[maker.layer for maker in makers(graph, step) if maker.type != "AddN"] for step in steps]
    assert [sorted(parts) for parts in added] == [
        ["reader_4", "reader_5"],
        ["reader_2", "reader_3"],
        ["reader_0", "reader_1"],
    ]
    # The last of the chain differentiates first, and each step goes with the earliest layer that it has summed.
    assert [step.layer for step in steps] == [min(parts) for parts in added] == ["reader_4", "reader_2", "reader_0"]
    assert [[maker.name for maker in makers(graph, step) if maker.type == "AddN"] for step in steps[1:]] == [
        [steps[0].name],
        [steps[1].name],
    ]


def test_a_step_runs_as_soon_as_its_parts_are_there() -> None:
    """Else all parts would be held until the last one is made."""
    graph = capture(read_by(NUM_READERS)).graph
    place = {op.name: index for index, op in enumerate(graph.ops)}
    for step in sums_of(graph)[:-1]:
        between = graph.ops[max(place[maker.name] for maker in makers(graph, step)) + 1 : place[step.name]]
        assert not [op for op in between if op.phase is Phase.BACKWARD and op.layer.startswith("reader")]


@pytest.mark.parametrize("num_readers", [2, 4])
def test_parts_of_few_layers_are_added_at_once(num_readers: int) -> None:
    graph = capture(read_by(num_readers)).graph
    assert [len(op.inputs) for op in sums_of(graph)] == [num_readers]


def test_gradients_of_weights_are_added_at_once() -> None:
    """The sums over microbatches come first there: each stage sends its own once a step."""
    inputs = keras.Input((models.WIDTH,))
    shared, x = layers.Dense(models.WIDTH, use_bias=False), inputs
    for index in range(NUM_READERS):
        x = layers.Dense(models.WIDTH, activation="relu", name=f"between_{index}")(shared(x))
    graph = capture(models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))).graph
    assert [len(op.inputs) for op in sums_of(graph)] == [NUM_READERS]


def test_steps_come_before_the_sum_though_the_first_part_is_the_last_made() -> None:
    """Else the sum would look for its partner before the steps have theirs."""
    graph = tf.Graph()
    with graph.as_default():
        parts = [tf.zeros([2], name=f"part_{index}") for index in range(12)]
        tf.add_n(parts[::-1], name="sum")
    order = {op.name: float(index) for index, op in enumerate(graph.get_operations())}
    partners = {"sum": "op_0"} | {f"part_{index}": f"op_{index}" for index in range(12)}
    layer_of = {f"op_{index}": f"layer_{index}" for index in range(12)}
    graph_def = graph.as_graph_def()
    assert len(sum_in_steps(graph_def, partners, layer_of, order, kept=())) == 6
    for node in graph_def.node:
        assert all(order[source] < order[node.name] for source in node.input)


@pytest.mark.parametrize("num_parts", [5, 6, 7, 8, 9, 10, 11, 12, 17, 18, 25, 48])
def test_steps_add_up_to_the_same_bits(num_parts: int) -> None:

    @tf.function(autograph=False)
    def added(x: tf.Tensor) -> tf.Tensor:
        parts = [tf.identity(x[index], name=f"part_{index}") for index in range(num_parts)]
        return tf.add_n(parts, name="sum")

    graph = added.get_concrete_function(tf.TensorSpec([num_parts, 100])).graph
    graph_def = graph.as_graph_def()
    order = {op.name: float(index) for index, op in enumerate(graph.get_operations())}
    partners = {"sum": "op_0"} | {f"part_{index}": f"op_{index}" for index in range(num_parts)}
    layer_of = {f"op_{index}": f"layer_{index}" for index in range(num_parts)}
    new = sum_in_steps(graph_def, partners, layer_of, order, kept=())
    assert set(new.values()) == {"sum"}
    assert all(len(node.input) <= 3 for node in graph_def.node if node.op == "AddN")
    x = np.random.default_rng(1).normal(size=(num_parts, 100)).astype("float32")

    @tf.function(autograph=False)
    def in_steps(x: tf.Tensor) -> tf.Tensor:
        return tf.graph_util.import_graph_def(graph_def, input_map={"x:0": x}, return_elements=["sum:0"], name="")[0]

    np.testing.assert_array_equal(in_steps(tf.constant(x)), added(tf.constant(x)))
