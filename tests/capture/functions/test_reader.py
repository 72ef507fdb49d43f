"""Loops, branches and calls in graphs of TensorFlow, against counts done by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow as tf

from cost_models.flops import op_cost
from cost_models.specs import OpSpec
from partitioner.capture.functions.reading import Reading
from partitioner.capture.lower.shapes import settle_shapes

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


def test_a_kernel_that_a_loop_reads_in_each_trip_is_not_saved_again() -> None:
    """A trip saves the state that it multiplies, (4, 3) floats, and the kernel, which stays where it is."""
    kernel = tf.Variable(tf.eye(3))

    def gradient(x: Any) -> Any:
        step = lambda i, y: (i + 1, tf.exp(y) @ kernel)  # noqa: E731
        y = tf.while_loop(lambda i, _: i < 6, step, (0, x), maximum_iterations=6)[1]
        return tf.gradients(y, [x, kernel.handle])

    graph = tf.function(gradient, autograph=False).get_concrete_function(tf.TensorSpec((None, 3))).graph
    argument, handle = graph.inputs
    found = settle_shapes(
        graph.as_graph_def(), {argument.op.name: tf.TensorSpec((None, 3))}, {handle.op.name: kernel.handle}, BATCH
    )
    assert trips(found) == [6, 6]
    pushed = 6 * BATCH * 3 * 4
    assert {spec.content_bytes for spec in found.specs.values()} == {0, pushed}


def test_what_a_trip_makes_and_the_next_one_is_given_is_saved_once() -> None:
    """The product of a trip is what the next one squares: both save the same buffer."""

    def gradient(x: Any) -> Any:
        step = lambda i, y: (i + 1, tf.tanh(tf.square(y)))  # noqa: E731
        y = tf.while_loop(lambda i, _: i < 6, step, (0, x), maximum_iterations=6)[1]
        return tf.gradients(y, x)

    found = read(gradient)
    contents = sorted(spec.content_bytes for spec in found.specs.values() if spec.content_bytes)
    assert contents
    assert set(contents) == {6 * BATCH * 3 * 4}
    assert len([name for name, spec in found.specs.items() if "while:" in name and spec.content_bytes]) == 1


def held(reading: Reading) -> list[int]:
    return [runs[1].held_bytes for runs in reading.runs.values()]


def test_a_loop_holds_what_two_trips_take_less_what_it_gives() -> None:
    """A trip makes two products of (4, 3) floats that may not be written over, and their sum over one of them."""

    def multiplied(x: Any, at_once: int) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, tf.linalg.matmul(y, tf.eye(3)) + tf.linalg.matmul(y, 2 * tf.eye(3))

        return tf.while_loop(lambda i, _: i < 5, body, (0, x), parallel_iterations=at_once)[1]

    size = BATCH * 3 * 4
    counter = 4
    trip = 2 * size + counter
    once, twice = (held(read(partial(multiplied, at_once=at_once))) for at_once in (1, 2))
    assert once == [pytest.approx(trip - size - counter, abs=40)]
    assert twice[0] - once[0] == pytest.approx(trip, abs=40)


def test_branches_hold_what_they_do_not_give() -> None:
    """The sums of columns, three floats, beside the exponentials first and beside the result, as large, later."""

    def branching(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: tf.reduce_sum(tf.exp(x), 0, keepdims=True) + x)

    ((first, second),) = read(branching).runs.values()
    assert first.held_bytes == 0
    assert second.held_bytes == 3 * 4


def test_lists_of_which_items_are_replaced_take_the_place_of_those_before() -> None:
    """The gradient of reading a row is a list of zeros in which one row after the other is replaced."""

    def gradient(x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, 6, element_shape=(BATCH,)).unstack(x)
        start = tf.zeros((BATCH,))
        step = lambda i, y: (i + 1, tf.tanh(y + rows.read(i)))  # noqa: E731
        y = tf.while_loop(lambda i, _: i < 6, step, (0, start), maximum_iterations=6)[1]
        return tf.gradients(y, x)

    found = read(gradient, (6, BATCH))
    replaced = [
        before for before in found.passed_on.values() if "zeros" in before and found.specs[before].content_bytes
    ]
    assert len(replaced) == 1
