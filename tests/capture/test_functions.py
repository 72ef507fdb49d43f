"""Loops, branches and calls in graphs of TensorFlow, against counts done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from cost_models.flops import op_cost
from cost_models.specs import OpSpec
from partitioner.capture.functions import Reading
from partitioner.capture.shapes import settle_shapes

BATCH = 4


def read(function: Callable[[Any], Any], shape: tuple[int | None, ...] = (None, 3)) -> Reading:
    """What is known of a function of one tensor."""
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
    (argument,) = graph.inputs
    return settle_shapes(graph.as_graph_def(), {argument.op.name: tf.TensorSpec(shape)}, {}, BATCH)


def trips(reading: Reading) -> list[int]:
    return [runs[1].times for runs in reading.runs.values()]


def count(start: int, limit: int, step: int, **options: Any) -> Callable[[Any], Any]:
    def loop(x: Any) -> Any:
        holds = (lambda i, _: i < limit) if step > 0 else (lambda i, _: i > limit)
        return tf.while_loop(holds, lambda i, y: (i + step, tf.nn.relu(y)), (start, x), **options)[1]

    return loop


@pytest.mark.parametrize(
    ("start", "limit", "step", "expected"), [(0, 5, 1, 5), (2, 9, 3, 3), (9, 2, -3, 3), (5, 5, 1, 0), (7, 5, 1, 0)]
)
def test_a_counting_loop(start: int, limit: int, step: int, expected: int) -> None:
    found = read(count(start, limit, step))
    assert trips(found) == [expected]
    assert [runs[0].times for runs in found.runs.values()] == [expected + 1]
    assert found.assumed_trips == {}


def test_the_fewest_of_several_limits() -> None:
    assert trips(read(count(0, 50, 1, maximum_iterations=7))) == [7]


def test_a_loop_over_the_rows_of_the_batch() -> None:
    found = read(lambda x: tf.map_fn(tf.nn.relu, x))
    assert trips(found) == [BATCH]
    assert found.assumed_trips == {}
    assert found.assumed == []


def test_a_loop_in_a_loop_and_its_cost() -> None:
    def nested(x: Any) -> Any:
        inner = count(0, 3, 1)
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, inner(y)), (0, x))[1]

    ((_, runs),) = read(nested).runs.items()
    cost = op_cost(OpSpec(type="While", runs=runs))
    rectified = sum(
        outer.times * inner.times * inner.cost.flops
        for outer in cost.parts
        for inner in outer.cost.parts
        if inner.type == "Relu"
    )
    assert rectified == 5 * 3 * BATCH * 3


def test_a_loop_that_may_end_sooner_is_bounded_and_assumed() -> None:
    def seeking(x: Any) -> Any:
        holds = lambda i, y: tf.logical_and(i < 6, tf.reduce_max(y) > 0)  # noqa: E731
        return tf.while_loop(holds, lambda i, y: (i + 1, y - 1), (0, x))[1]

    found = read(seeking)
    assert trips(found) == [6]
    assert list(found.assumed_trips.values()) == [6]


def test_what_no_trip_changes_is_passed_on() -> None:
    def scaled(x: Any) -> Any:
        factor = tf.reduce_sum(x, axis=0)
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, y * factor), (0, x))[1]

    found = read(scaled)
    assert any("Sum" in before for before in found.passed_on.values())


def test_branches_and_calls_with_their_shapes() -> None:
    def branching(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: tf.exp(tf.nn.relu(x)))

    (runs,) = read(branching).runs.values()
    types = [{op.type: op.outputs[0].shape for op in run.ops} for run in runs]
    assert [one["Relu"] for one in types] == [(BATCH, 3)] * 2
    assert op_cost(OpSpec(type="If", runs=runs)).flops == BATCH * 3 * (1 + 8)

    called = tf.function(lambda x: tf.nn.relu(x), autograph=False)
    (runs,) = read(lambda x: called(x) + 1.0).runs.values()
    assert [op.outputs[0].shape for run in runs for op in run.ops if op.type == "Relu"] == [(BATCH, 3)]


def test_a_loop_saves_what_its_gradient_needs() -> None:
    """Of six trips, what each one exponentiated: (4, 3) floats."""

    def gradient(x: Any) -> Any:
        y = tf.while_loop(lambda i, _: i < 6, lambda i, y: (i + 1, tf.exp(y)), (0, x), maximum_iterations=6)[1]
        return tf.gradients(y, x)

    found = read(gradient)
    assert trips(found) == [6, 6]
    assert max(spec.content_bytes for spec in found.specs.values()) == 6 * BATCH * 3 * 4
