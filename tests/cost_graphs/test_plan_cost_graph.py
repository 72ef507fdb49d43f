"""Plans of random cost graphs, from the real solver: the checker accepts each, and nothing that differs from it."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from instances import graph

from partitioner.cost_graphs.check import check_plan
from partitioner.cost_graphs.document import CostGraphPlan
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.ir.devices import parse_devices

DEVICES = parse_devices("GPU:0-2,CPU:0")


def random_graph(chance: random.Random, size: int) -> CostGraph:
    """Some nodes in groups, some backward; some alone: the graph need not be connected."""
    return graph(
        [1.0 + chance.randint(0, 40) / 4 for _ in range(size)],
        [(a, b) for b in range(size) for a in range(max(0, b - 4), b) if chance.random() < 0.3],
        [0.125 + chance.randint(0, 12) / 8 for _ in range(size)],
        memory_bytes=[float(chance.randint(1, 5)) for _ in range(size)],
        group=[chance.choice([None, None, None, f"pair {index // 2}"]) for index in range(size)],
        is_backward=[index > size * 0.6 for index in range(size)],
    )


def planned(
    of: CostGraph, contiguous: bool, time_limit: float = 300.0, work_limit: float | None = 1.0
) -> CostGraphPlan:
    return plan_cost_graph(
        of,
        DEVICES,
        name="random",
        source="random.json",
        contiguous=contiguous,
        time_limit=time_limit,
        work_limit=work_limit,
    )


@pytest.mark.parametrize("seed", range(4))
def test_each_plan_is_accepted_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    of = random_graph(chance, 20)
    plan = planned(of, contiguous=bool(seed % 2))
    assert check_plan(plan, of).problems == ()
    solver = plan.solver
    for changed in (
        replace(solver, objective=solver.objective * 0.99),
        replace(solver, objective=solver.objective * 1.01),
        replace(solver, lower_bound=solver.objective * 1.01),
        replace(solver, gap=solver.gap + 0.01),
        replace(solver, status="optimal", lower_bound=solver.objective * 0.5, gap=0.5),
    ):
        assert check_plan(replace(plan, solver=changed), of).problems
    names = [device.canonical for device in DEVICES]
    for _ in range(20):
        node = chance.choice(of.nodes)
        elsewhere = chance.choice([name for name in names if name != plan.placement[node.id]])
        moved = {**plan.placement, node.id: elsewhere}
        found = check_plan(replace(plan, placement=moved), of)
        # What is not refused is another placement of the same largest load.
        assert found.problems or found.objective == pytest.approx(solver.objective)


def test_a_second_is_enough_for_a_plan() -> None:
    """300 nodes that take far longer to place well: the clock ends the search, and what it has is a sound plan."""
    of = random_graph(random.Random(9), 300)
    began = time.monotonic()
    plan = planned(of, contiguous=False, time_limit=1.0, work_limit=None)
    assert time.monotonic() - began < 20  # the limit and what reading and writing take; a hang would take minutes
    assert plan.solver.seconds < 15
    assert check_plan(plan, of).problems == ()
    assert 0 < plan.solver.lower_bound <= plan.solver.objective


def test_pieces_that_nothing_joins_are_planned() -> None:
    """Two chains and a node alone, 12 of work on three devices: 4 for each, and nothing to move."""
    of = graph([2.0, 2.0, 1.0, 3.0, 4.0], [(0, 1), (2, 3)], [5.0] * 5)
    for contiguous in (False, True):
        plan = planned(of, contiguous)
        assert (plan.solver.status, plan.solver.objective) == ("optimal", pytest.approx(4.0))
