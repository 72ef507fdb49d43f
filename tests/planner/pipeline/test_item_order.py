"""Items in forward order, and the running sums that stages are cut by, by hand."""

from __future__ import annotations

import pytest
from graphs import Builder, pipeline, random_steps, topology
from hypothesis import given

from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.op_places import op_places
from partitioner.planner.pipeline.ordered_items import ordered_items
from partitioner.planner.simulate.program_costs import OP_SECONDS


def names_in_order(made: Builder) -> list[str]:
    costed = made.costed()
    coarsening = coarsen(costed)
    return [coarsening.names[item] for item in forward_order(costed, coarsening)]


def test_layers_follow_the_forward_pass_though_a_later_op_was_made_first() -> None:
    made = Builder()
    made.add("x", 1.0, layer="in")
    made.add("shape", 1.0, layer="last")  # a constant-like op of the last layer, made early
    made.add("a", 1.0, "x", layer="middle")
    made.add("b", 1.0, "a", "shape", layer="last")
    assert names_in_order(made) == ["in", "middle", "last"]


def test_items_that_wait_for_each_other_stand_together() -> None:
    made = Builder()
    made.add("x", 1.0, layer="first")
    made.add("a", 1.0, "x", layer="A")
    made.add("b", 1.0, "a", layer="B")
    made.add("a2", 1.0, "b", layer="A")
    made.add("y", 1.0, "a2", layer="last")
    assert names_in_order(made) == ["first", "A", "B", "last"]


def test_items_of_backward_ops_alone_stand_behind_what_they_exchange_most_with() -> None:
    made = Builder()
    made.add("a", 1.0, layer="A", size_bytes=1024)
    made.add("b", 1.0, "a", layer="B", size_bytes=4)
    made.add("g", 1.0, "a", "b", phase=Phase.BACKWARD)
    made.add("h", 1.0, "g", phase=Phase.BACKWARD)
    # h exchanges with g alone, which has no place of its own in the forward pass.
    assert names_in_order(made) == ["A", "g", "B", "h"]


def test_running_sums_of_two_layers() -> None:
    costed = pipeline(2, forward=1.0, backward=2.0).costed(topology(1))
    coarsening = coarsen(costed)
    items = ordered_items(costed, op_places(costed, coarsening, forward_order(costed, coarsening)), {})
    # f, d and f, d, b; the reads of variables and the updates run once a step.
    first, second = 1.0 + 2.0 + 2 * OP_SECONDS, 1.0 + 2.0 + 3 * OP_SECONDS
    assert items.pass_seconds[0].tolist() == pytest.approx([0.0, first, first + second])
    assert items.variable_bytes.tolist() == [0, 4096, 2 * 4096]
    assert items.gradient_bytes.tolist() == [0, 2048, 2 * 2048]
    # The first layer keeps x and f, the second f.
    assert items.saved_bytes.tolist() == [0, 256 + 1024, 256 + 2 * 1024]
    assert items.forward_bytes.tolist() == items.least_forward_bytes.tolist() == [0, 1024, 0]
    assert items.backward_bytes.tolist() == items.least_backward_bytes.tolist() == [0, 256, 0]


def test_a_small_tensor_over_all_stages_is_not_what_each_waits_for() -> None:
    """Bug: a mask of a few bytes, which only the last layer reads, made it look as if nearly nothing crossed."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", layer="A", size_bytes=4)
    made.add("mask", 1.0, "x", layer="A", size_bytes=4)
    made.add("a", 1.0, "x", layer="A", size_bytes=1024)
    made.add("b", 1.0, "a", layer="B", size_bytes=2048)
    made.add("c", 1.0, "b", layer="C", size_bytes=4096)
    made.add("d", 1.0, "c", "mask", layer="D", size_bytes=8)
    costed = made.costed()
    coarsening = coarsen(costed)
    places = op_places(costed, coarsening, forward_order(costed, coarsening))
    sizes = ordered_items(costed, places, {}).tensor_bytes
    assert places.forward.least(sizes, range(2, 3), 0, 4) == 4.0  # the last stage may begin with C
    assert places.forward.least(sizes, range(2, 3), 1, 4) == 2048.0  # A is not in the stage before
    assert places.forward.least(sizes, range(2, 3), 0, 3) == 2048.0  # D is not in the stage behind
    assert places.forward.least(sizes, range(1, 4), 1, 4) == 0.0  # behind A, nothing comes from B
    assert places.forward.least(sizes, range(2, 4), 1, 4) == 2048.0
    assert places.backward.least(sizes, range(2, 3), 0, 4) == 0.0


def test_what_depends_on_no_row_runs_once() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder")
    made.add("table", 2.0, layer="A", type="Range")
    made.add("y", 1.0, "x", "table", layer="A")
    costed = made.costed(topology(1))
    coarsening = coarsen(costed)
    items = ordered_items(costed, op_places(costed, coarsening, forward_order(costed, coarsening)), {})
    assert [round(float(sums[0, -1])) for sums in (items.once_seconds, items.forward_seconds)] == [2, 1]


def test_a_sum_of_gradients_counts_where_the_first_of_them_is_made() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder")
    made.add("a", 1.0, "x", layer="A")
    made.add("b", 1.0, "a", layer="B")
    made.add("c", 1.0, "b", "a", layer="C")
    back = {"phase": Phase.BACKWARD}
    made.add("gc", 1.0, "c", layer="C", **back)
    made.add("gb", 1.0, "gc", "b", layer="B", **back)
    made.add("sum", 8.0, "gc", "gb", type="AddN", layer="C", **back)
    made.add("ga", 1.0, "sum", "a", layer="A", **back)
    costed = made.costed(topology(1))
    coarsening = coarsen(costed)
    items = ordered_items(costed, op_places(costed, coarsening, forward_order(costed, coarsening)), {})
    assert [coarsening.names[item] for item in items.order][-3:] == ["A", "B", "C"]
    assert [round(float(value)) for value in items.backward_seconds[0]][-4:] == [0, 1, 10, 11]


def test_gradients_that_no_other_item_needs_may_be_left_for_later() -> None:
    """But those of the first item, whose stage nobody waits for, wherever the others are cut."""
    costed = pipeline(3, forward=1.0, backward=2.0).costed(topology(1))
    coarsening = coarsen(costed)
    items = ordered_items(costed, op_places(costed, coarsening, forward_order(costed, coarsening)), {})
    assert items.weights_seconds[0].tolist() == pytest.approx([0.0, 0.0, 2.0, 4.0], abs=1e-4)
    # The second one reads f0, f1 and the error b2; the third f1, which is counted there, and f2.
    assert items.late_bytes.tolist() == [0, 0, 1024 + 256, 1024 + 256 + 2 * 1024]


@given(random_steps())
def test_forward_edges_never_lead_back(made: Builder) -> None:
    costed = made.costed()
    coarsening = coarsen(costed)
    order = forward_order(costed, coarsening)
    assert sorted(order) == list(range(len(coarsening.items)))
    place = {item: index for index, item in enumerate(order)}
    for op in made.ops:
        for name in op.inputs:
            source = costed.graph.op[costed.graph.tensor[name].producer]
            if op.phase is source.phase is Phase.FORWARD:
                assert place[coarsening.item_of[source.name]] <= place[coarsening.item_of[op.name]]
