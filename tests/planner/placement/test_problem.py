"""The solver's integers: tasks, transfers and bytes by hand, and a valid problem from any graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from graphs import Builder, chain, link, pinned, random_graphs, topology, training_chain
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.problem import PlacementProblem, ProblemLink, Transfer
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.assignment import adjacent_items
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.item_bytes import item_bytes
from partitioner.planner.placement.problem import placement_problem

S = 10**9
"""Nanoseconds of a second."""


def problem_of(costed: CostedGraph, constraints: Sequence[ResolvedConstraint] = ()) -> PlacementProblem:
    limits = [placed.memory_bytes for placed in costed.topology.devices]
    return placement_problem(costed, coarsen(costed, constraints=constraints), capacities_bytes=limits)


def test_a_chain_by_hand() -> None:
    wire = link(latency_seconds=1.2345678912e-3, bandwidth_bytes_per_second=3e9)
    costed = chain([1.0, 2.0], [400, 8], [1024, 0]).costed(topology(2, speeds=[1.0, 2.0], wire=wire))
    problem = problem_of(costed, pinned(op1=1))
    assert [task.duration_ns for task in problem.tasks] == [(S, S // 2), (2 * S, S)]
    assert [(item.name, item.memory_bytes, item.allowed_devices) for item in problem.items] == [
        ("layer0", 1024, ()),
        ("layer1", 0, (1,)),
    ]
    assert problem.transfers == (Transfer(source=0, targets=(1,), size_bytes=400),)
    assert problem.links[0][1] == ProblemLink(latency_ns=1_234_568, picoseconds_per_byte=334)  # rounded up


def test_what_nobody_else_waits_for_is_a_task_of_its_own() -> None:
    """The gradient of a weight and the update may wait; the gradient of the input may not."""
    made = training_chain(2, parameter_bytes=256, slot_bytes=0, saved_bytes=256)
    problem = problem_of(made.costed())
    layer1 = next(index for index, item in enumerate(problem.items) if item.name == "layer1")
    durations = [task.duration_ns[0] for task in problem.tasks if task.item == layer1]
    assert durations == [S, S, S, S]  # f1, b1, d1, u1


def test_a_tensor_read_in_two_items_is_one_transfer() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=400)
    made.add("b", 1.0, "a")
    made.add("c", 1.0, "a")
    assert problem_of(made.costed()).transfers == (Transfer(source=0, targets=(1, 2), size_bytes=400),)


def test_a_control_edge_is_a_transfer_of_nothing() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, after=["a"])
    assert problem_of(made.costed()).transfers == (Transfer(source=0, targets=(1,), size_bytes=0),)


def test_items_that_wait_for_each_other_are_cut_into_tasks() -> None:
    made = Builder()
    made.add("a1", 1.0, layer="A")
    made.add("b1", 1.0, "a1", layer="B")
    made.add("a2", 1.0, "b1", layer="A")
    made.add("b2", 1.0, "a2", layer="B")
    problem = problem_of(made.costed())
    assert [task.item for task in problem.tasks] == [0, 1, 0, 1]
    assert [(t.source, t.targets) for t in problem.transfers] == [(0, (1,)), (1, (2,)), (2, (3,))]


def test_bytes_of_items_by_hand() -> None:
    made = training_chain(2, parameter_bytes=1024, slot_bytes=2048, saved_bytes=512)
    costed = made.costed()
    coarsening = coarsen(costed)
    by_name = dict(zip(coarsening.names, item_bytes(costed, coarsening), strict=True))
    # weight + slot + gradient + saved output
    assert (by_name["layer0"], by_name["layer1"]) == (1024 + 2048 + 1024 + 512,) * 2
    at_least = dict(zip(coarsening.names, item_bytes(costed, coarsening, at_least=True), strict=True))
    # gradients are 2048 in all, saved activations 2 * 512 + 256 (the loss): the gradients count
    assert (at_least["layer0"], at_least["layer1"]) == (1024 + 2048 + 1024,) * 2


def test_adjacent_items_are_those_with_an_edge_between_them() -> None:
    made = chain([1.0] * 4, [4] * 4)
    made.add("last", 1.0, after=["op0"])
    costed = made.costed()
    assert adjacent_items(costed, coarsen(costed)) == [{1, 4}, {0, 2}, {1, 3}, {2}, {0}]


@given(random_graphs(max_ops=10), st.sampled_from([1, 2, 3, 64]))
def test_any_graph_makes_a_valid_problem(made: Builder, max_items: int) -> None:
    """`PlacementProblem` raises where tasks wait for each other in a cycle, however items interleave."""
    costed = made.costed()
    coarsening = coarsen(costed, max_items)
    problem = placement_problem(costed, coarsening, capacities_bytes=[2**40] * 2)
    total = sum(cost.flops for cost in costed.costs) / 2**10
    duration_ns = sum(task.duration_ns[0] for task in problem.tasks)
    assert duration_ns == pytest.approx(total * S, abs=len(problem.tasks))


@given(random_graphs(max_ops=10))
def test_items_hold_at_least_variables_and_what_is_kept(made: Builder) -> None:
    costed = made.costed()
    buffers = Buffers(costed)
    used = {name for op in made.ops for name in op.variables}
    variables = sum(v.size_bytes for v in made.variables if v.name in used)
    kept = sum(costed.graph.tensor[name].size_bytes for name in buffers.kept)
    coarsening = coarsen(costed)
    assert sum(item_bytes(costed, coarsening)) >= variables + kept
    assert sum(item_bytes(costed, coarsening, at_least=True)) <= sum(item_bytes(costed, coarsening))
    assert any(op.phase is not Phase.FORWARD for op in made.ops) or not buffers.kept
