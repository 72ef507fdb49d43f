"""Downsets and the pieces between them, against all sets and all placements tried one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import best_by_trying, cost_graphs, cpu, device_lists, gpu, graph

from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.contiguous.downsets import Downsets
from partitioner.cost_graphs.solver.contiguous.pieces import settle_by_pieces
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.problem import LoadDevice, MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import without_cycles
from partitioner.errors import InfeasibleError

Solve = Callable[[MaxLoadProblem], list[MaxLoadAnswer]]


def settled(problem: MaxLoadProblem, bound: int = 0) -> tuple[Incumbent, list[MaxLoadAnswer]]:
    """What the DP alone makes of a problem of which only a bound is known before."""
    told: list[MaxLoadAnswer] = []
    incumbent = Incumbent(problem, told.append)
    incumbent.raise_bound(bound)
    dearest = sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    everything = dearest + sum(value.cost for value in problem.values)
    settle_by_pieces(problem, incumbent, everything, Budget(600, 100))
    return incumbent, told


@given(of=cost_graphs(), devices=device_lists())
@settings(max_examples=200, deadline=None)
def test_brute_force_agrees(of: CostGraph, devices: tuple[LoadDevice, ...]) -> None:
    best = best_by_trying(of, devices, contiguous=True)
    try:
        built = build_problem(of, devices, contiguous=True)
    except InfeasibleError:  # a node needs a CPU that is not there
        assert best is None
        return
    incumbent, told = settled(without_cycles(built.problem).problem)
    if best is None:
        assert incumbent.answer.status == "infeasible"
        return
    assert incumbent.answer.status == "optimal" and incumbent.max_load is not None
    assert incumbent.max_load * built.unit == pytest.approx(best, abs=1e-8)
    assert all(one.lower_bound <= incumbent.max_load for one in told)


@given(of=cost_graphs(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_downsets_are_all_sets_that_nothing_outside_precedes(of: CostGraph, data: st.DataObject) -> None:
    problem = without_cycles(build_problem(of, (gpu(0), gpu(1), cpu()), contiguous=True).problem).problem
    work = [item.accelerator_cost for item in problem.items]
    least, most = (sum(work) * data.draw(st.integers(0, 10)) // 10 for _ in range(2))
    tried = {
        bits
        for bits in itertools.product([False, True], repeat=len(work))
        if all(bits[a] or not bits[b] for a, b in problem.precedes)
        and least <= sum(itertools.compress(work, bits)) <= most
    }
    found = Downsets(problem).between(least, most, 2 ** len(work))
    assert found is not None
    assert sorted(map(tuple, found.tolist())) == sorted(tried)


def test_too_many_downsets_are_left_alone() -> None:
    """20 chains side by side have 6 to the 20th downsets."""
    edges = [(5 * chain + place, 5 * chain + place + 1) for chain in range(20) for place in range(4)]
    problem = build_problem(graph([1.0] * 100, edges), (gpu(0), gpu(1)), contiguous=True).problem
    bound = quick_bound(problem)
    incumbent, _ = settled(problem, bound)
    assert incumbent.answer.status == "time-limit" and incumbent.lower_bound == bound


def test_cells_of_branches_are_settled_in_moments(solve: Solve) -> None:
    """Bug: the contiguous placement of an InceptionV3 by layers was proved after 7 s only.

    Ten cells of four branches of nine layers, for which CP-SAT alone took 22 s and ten times the work allowed here.
    """
    branches, layers = 4, 9
    costs, moved, edges = [1.0], [0.1], []
    for cell in range(10):
        before, after = len(costs) - 1, len(costs) + branches * layers
        for branch in range(branches):
            row = range(len(costs), len(costs) + layers)
            costs += [1.0 + (5 * cell + 3 * branch + 7 * place) % 11 / 7 for place in range(layers)]
            moved += [0.02 + (cell + branch + place) % 5 / 50 for place in range(layers)]
            edges += itertools.pairwise([before, *row, after])
        costs.append(0.3)
        moved.append(0.2)
    problem = build_problem(graph(costs, edges, moved), tuple(map(gpu, range(6))), contiguous=True, work_limit=1.0)
    assert solve(problem.problem)[-1].status == "optimal"
