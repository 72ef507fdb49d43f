"""The order in which an executor runs ops, by hand."""

from __future__ import annotations

from graphs import random_graphs
from hypothesis import given

from partitioner.ir.op_graph import OpGraph
from partitioner.ir.run_order import run_orders

# A layer's gradient g is read by the gradients of its weights and of its input, which the next layer reads.
NEEDS = {"g1": (), "w1": ("g1",), "x1": ("g1",), "g2": ("x1",), "w2": ("g2",), "x2": ("g2",)}


def test_where_nothing_is_queued_what_is_ready_first_runs_first() -> None:
    assert list(run_orders(list(NEEDS), NEEDS, ())) == [["g1", "w1", "x1", "g2", "w2", "x2"]]


def test_of_queued_ops_that_get_ready_together_the_last_or_the_first_goes_on_and_the_others_wait() -> None:
    last, first = run_orders(list(NEEDS), NEEDS, NEEDS)
    assert last == ["g1", "x1", "g2", "x2", "w2", "w1"]
    assert first == ["g1", "w1", "x1", "g2", "w2", "x2"]


def test_what_is_cheap_does_not_wait() -> None:
    needs = {"a": (), "shape": ("a",), "b": ("a",), "c": ("b",), "size": ("shape",)}
    for order in run_orders(list(needs), needs, {"a", "b", "c"}):
        assert order == ["a", "shape", "size", "b", "c"]


def needs_of(graph: OpGraph) -> dict[str, list[str]]:
    return {op.name: list(dict.fromkeys(graph.tensor[name].producer for name in op.inputs)) for op in graph.ops}


@given(random_graphs())
def test_every_op_runs_once_and_after_what_it_needs(made) -> None:
    needs = needs_of(made.graph())
    for queued in ((), list(needs), list(needs)[::2]):
        for order in run_orders(list(needs), needs, queued):
            assert sorted(order) == sorted(needs)
            assert all(order.index(source) < order.index(name) for name in needs for source in needs[name])
