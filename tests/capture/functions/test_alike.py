"""Ops that are alike are looked at once, and get the shapes that each gets when it is looked at alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import models
import pytest
import tensorflow as tf
from captures import capture
from keras import layers

from partitioner.capture.functions.reading import Reading
from partitioner.capture.lower.shapes import settle_shapes
from partitioner.ir.graph_def import producer
from partitioner.ir.step import CapturedStep


def with_a_list(graph_def: Any) -> Any:
    """The graph and a list that nothing reads: all of it is then read one by one."""
    lists = tf.Graph()
    with lists.as_default():
        tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=tf.float32, name="a_list")
    both = type(graph_def)()
    both.CopyFrom(graph_def)
    both.node.extend(lists.as_graph_def().node)
    return both


def read(step: CapturedStep, rows: int, *, alone: bool = False) -> Reading:
    arguments = [spec for spec in tf.nest.flatten(step.specs) if spec is not None]
    inputs = dict(zip(map(producer, step.inputs), arguments, strict=True))
    graph_def = with_a_list(step.graph_def) if alone else step.graph_def
    return settle_shapes(graph_def, inputs, step.captures, rows)


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("rows", [3, 8])
def test_shapes_are_those_of_ops_that_are_looked_at_alone(name: str, rows: int) -> None:
    step = capture(models.MODELS[name](), batch_size=8)
    shared, alone = read(step, rows), read(step, rows, alone=True)
    assert shared.specs == {name: spec for name, spec in alone.specs.items() if not name.startswith("a_list")}
    assert shared.assumed == alone.assumed


def graph_of(compute: Callable[[Any], Any]) -> tuple[Any, dict[str, Any], list[str]]:
    function = tf.function(compute, autograph=False).get_concrete_function(tf.TensorSpec((None, 6, 100)))
    graph = function.graph
    return graph.as_graph_def(), {graph.inputs[0].op.name: tf.TensorSpec((None, 6, 100))}, [*map(_name, graph.outputs)]


def _name(tensor: Any) -> str:
    return tensor.op.inputs[0].name if tensor.op.type == "Identity" else tensor.name


@pytest.mark.parametrize(
    ("compute", "shapes"),
    [
        (lambda x: [tf.reshape(x, [-1, 3, 200]), tf.reshape(x, [-1, 2, 300])], [(4, 3, 200), (4, 2, 300)]),
        (lambda x: [tf.reduce_sum(x, 1), tf.reduce_sum(x, 2)], [(4, 100), (4, 6)]),
        (lambda x: [tf.reduce_sum(x, 1), tf.reduce_sum(x, 1, keepdims=True)], [(4, 100), (4, 1, 100)]),
        (lambda x: [tf.concat([x, x], axis) for axis in (1, 2)], [(4, 12, 100), (4, 6, 200)]),
        (
            lambda x: [tf.zeros(tf.cast(tf.constant([a, 5.0]) * 2.0, tf.int32)) + x[0, 0, 0] for a in (2.0, 3.0)],
            [(4, 10), (6, 10)],
        ),
    ],
)
def test_numbers_that_make_a_shape_are_told_apart(compute: Any, shapes: list[tuple[int, ...]]) -> None:
    graph_def, inputs, outputs = graph_of(compute)
    found = settle_shapes(graph_def, inputs, {}, 4)
    assert [found.specs[name].shape for name in outputs] == shapes


def blocks(depth: int) -> CapturedStep:
    stack = [layers.Dense(80, activation="gelu") for _ in range(depth)]
    model = keras.Sequential([layers.Input((80,)), *stack, layers.Dense(3)])
    return capture(models.compiled(model), batch_size=8)


def test_equal_blocks_are_looked_at_once() -> None:
    few, many = (read(step, 4).tensors for step in (blocks(4), blocks(12)))
    assert len(many) > 2 * len(few)
    assert len({id(tensor.op) for tensor in many.values()}) == len({id(tensor.op) for tensor in few.values()})
