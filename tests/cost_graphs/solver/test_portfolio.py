"""The portfolio against brute force and optima computed by hand."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import (
    best_by_trying,
    cost_graphs,
    cpu,
    device_lists,
    gpu,
    graph,
    is_allowed,
    max_load,
    requirement_lists,
)

from partitioner.constraints.match import requirements_of
from partitioner.cost_graphs.constraints import resolve_node_constraints
from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.contiguous import chain
from partitioner.cost_graphs.solver.contiguous.chain import cut_order
from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import LoadDevice, MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.start import first_fit
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import DeviceName, parse_devices
from partitioner.ir.json import to_json

Solve = Callable[[MaxLoadProblem], list[MaxLoadAnswer]]
CLOSE = 1e-8


@given(data=st.data(), of=cost_graphs(), devices=device_lists(), contiguous=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_brute_force_agrees(
    solve: Solve, data: st.DataObject, of: CostGraph, devices: tuple[LoadDevice, ...], contiguous: bool
) -> None:
    asked = data.draw(requirement_lists(of, devices))
    best = best_by_trying(of, devices, contiguous, asked)
    rules = resolve_node_constraints(of, asked, [DeviceName.parse(device.name) for device in devices])
    try:
        built = build_problem(of, devices, constraints=rules, contiguous=contiguous, time_limit_seconds=600)
    except InfeasibleError:  # they contradict each other
        assert best is None
        return
    told = solve(built.problem)
    answer = told[-1]
    if best is None:
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal" and answer.assignment is not None and answer.max_load is not None
    by_name = {device.name: device for device in devices}
    placement = {node: by_name[name] for node, name in built.placement(answer.assignment).items()}
    assert is_allowed(of, placement, contiguous, asked)
    assert max_load(of, placement) == pytest.approx(best, abs=CLOSE)
    assert answer.max_load * built.unit == pytest.approx(best, abs=CLOSE)
    assert all(one.lower_bound * built.unit <= best + CLOSE for one in told)
    assert quick_bound(built.problem) * built.unit <= best + CLOSE
    assert [one.lower_bound for one in told] == sorted(one.lower_bound for one in told)


def test_a_presolve_that_lost_the_optimum_is_off(solve: Solve) -> None:
    """CP-SAT 9.15 called 4.5 optimal here: 4 on the accelerator, 1 and 3 on the CPU, and nothing to move, is 4."""
    of = graph(
        [0.0, 0.0, 0.0, 4.0, 1.0, 0.0, 3.0],
        [(5, 6)],
        [0.5] * 7,
        cpu_cost=[0.0, 0.0, 0.0, 4.0, 1.0, 0.0, 3.0],
        needs_cpu=[True, True, True, False, False, True, False],
    )
    built = build_problem(of, (gpu(0, 5), cpu()), contiguous=True, time_limit_seconds=600)
    answer = solve(built.problem)[-1]
    assert answer.status == "optimal" and answer.max_load is not None
    assert answer.max_load * built.unit == pytest.approx(4.0)


def test_a_value_is_paid_once_per_device_it_touches(solve: Solve) -> None:
    """Node 0 feeds three others: whoever reads it pays once, its maker pays once."""
    of = graph([6.0, 3.0, 3.0, 6.0], [(0, 1), (0, 2), (0, 3)], [2.0, 0.0, 0.0, 0.0])
    answer = solve(build_problem(of, (gpu(0), gpu(1)), time_limit_seconds=600).problem)[-1]
    assert answer.status == "optimal"
    built = build_problem(of, (gpu(0), gpu(1)))
    # Two of the four on each side, 9 + 2; with 0, 1 and 2 together it is 12 + 2.
    assert answer.max_load is not None and answer.max_load * built.unit == pytest.approx(11.0)


def test_contiguous_pieces_may_not_interleave(solve: Solve) -> None:
    """A chain of costs 5, 1, 2, 6 whose values cost nothing to move."""
    of = graph([5.0, 1.0, 2.0, 6.0], [(0, 1), (1, 2), (2, 3)], [0.0, 0.0, 0.0, 0.0])
    best = {}
    for contiguous in (False, True):
        built = build_problem(of, (gpu(0), gpu(1)), contiguous=contiguous, time_limit_seconds=600)
        load = solve(built.problem)[-1].max_load
        assert load is not None
        best[contiguous] = load * built.unit
    assert best[False] == pytest.approx(7.0)  # {0, 2} and {1, 3}
    assert best[True] == pytest.approx(8.0)  # {0, 1, 2} and {3}, or {0, 1} and {2, 3}


def test_a_free_placement_sets_out_from_a_contiguous_one(solve: Solve) -> None:
    """Bug: of an InceptionV3 by layers, whose tensors take long to move, the free placement took longer."""
    branches, costs, moved, edges = 4, [1.0], [9.0], []
    for block in range(12):
        first = len(costs)
        costs += [float(1 + (3 * block + 5 * branch) % 7) for branch in range(branches)] + [0.5]
        moved += [float(2 + (block + branch) % 3) for branch in range(branches)] + [9.0 - block / 2]
        edges += [(first - 1, first + branch) for branch in range(branches)]
        edges += [(first + branch, first + branches) for branch in range(branches)]
    built = build_problem(graph(costs, edges, moved), tuple(map(gpu, range(5))), time_limit_seconds=600)
    contiguous = solve(replace(built.problem, contiguous=True, work_limit=0.15))[-1].max_load
    told = solve(replace(built.problem, work_limit=1.0))
    assert [answer.max_load for answer in told if answer.method == "contiguous pieces"][-1] == contiguous
    assert told[-1].max_load is not None and contiguous is not None
    assert told[-1].max_load <= contiguous


def test_the_seed_and_the_work_settle_the_answer(solve: Solve) -> None:
    costs = [float(3 + 7 * index % 11) for index in range(24)]
    edges = [(index, index + step) for index in range(24) for step in (1, 5) if index + step < 24]
    of = graph(costs, edges, [0.25 + (index % 4) / 4 for index in range(24)])
    built = build_problem(of, (gpu(0), gpu(1), gpu(2), cpu()), time_limit_seconds=600)
    problem = replace(built.problem, work_limit=0.3)
    first, second = solve(problem)[-1], solve(problem)[-1]
    assert (first.assignment, first.lower_bound) == (second.assignment, second.lower_bound)


@given(data=st.data(), of=cost_graphs(), devices=device_lists())
@settings(max_examples=60, deadline=None)
def test_intervals_of_a_row_are_cut_at_best(
    data: st.DataObject, of: CostGraph, devices: tuple[LoadDevice, ...]
) -> None:
    """All ways to cut the row of items into intervals, one per device in any order, tried one by one."""
    asked = data.draw(requirement_lists(of, devices))
    try:
        rules = resolve_node_constraints(of, asked, [DeviceName.parse(device.name) for device in devices])
        problem = build_problem(of, devices, constraints=rules).problem
    except InfeasibleError:
        return
    row = tuple(range(len(problem.items)))
    found = cut_order(problem, row)
    best = best_of_cuts(problem)
    assert (found[0] if found else None) == best


def test_devices_that_are_all_told_apart_come_as_their_own_items_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of eight on four devices, the third piece of which is pinned to the first device, and so on."""
    of = graph([1.0] * 8, [(index, index + 1) for index in range(7)], [0.5] * 8)
    devices = tuple(gpu(index) for index in range(4))
    asked = requirements_of({"4": "GPU:0", "7": "GPU:1", "0": "GPU:2", "2": "GPU:3"})
    rules = resolve_node_constraints(of, asked, parse_devices("GPU:0-3"))
    built = build_problem(of, devices, constraints=rules)
    monkeypatch.setattr(chain, "_MOST_WORK", 0)
    found = cut_order(built.problem, range(8))
    assert found is not None
    assert found[1] == (2, 2, 3, 3, 0, 0, 1, 1)
    assert found[0] * built.unit == pytest.approx(3.0)


def best_of_cuts(problem: MaxLoadProblem) -> int | None:
    size, places = len(problem.items), len(problem.devices)
    results = []
    for cuts in itertools.combinations_with_replacement(range(size + 1), places - 1):
        edges = (0, *cuts, size)
        for order in itertools.permutations(range(places)):
            assignment = [d for d, a, b in zip(order, edges, edges[1:], strict=False) for _ in range(b - a)]
            if not any(violations(problem, assignment)):
                results.append(max(loads(problem, assignment)))
    return min(results, default=None)


WARM_STARTS = """
import sys
from ortools.sat.python import cp_model
from partitioner.ir.json import from_json
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.free.model import FreeModel, in_order
from partitioner.cost_graphs.solver.loads import loads
from partitioner.cost_graphs.solver.contiguous.model import StageModel
from partitioner.cost_graphs.solver.start import first_fit
from partitioner.cost_graphs.constraints import resolve_node_constraints
from partitioner.constraints.match import requirements_of
from partitioner.ir.devices import parse_devices

for line in sys.stdin:
    problem = from_json(line, MaxLoadProblem)
    start = first_fit(problem)
    load = max(loads(problem, start))
    for model in (StageModel(problem, 0, load), FreeModel(problem, 0, load)):
        if isinstance(model, FreeModel):
            model.open_devices_in_order()
            model.minimise_largest()
            start = in_order(problem, start)
        model.hint(start)
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        status = solver.solve(model.cp)
        print(solver.status_name(status), round(solver.objective_value) == load)
"""


def test_cp_sat_accepts_warm_starts() -> None:
    """With every hinted variable fixed to its hint, the model has a solution, and it is the warm start's."""
    problems = []
    for seed in range(6):
        costs = [float(1 + (seed + 3 * index) % 7) for index in range(12)]
        edges = [(index, index + 1 + (seed * index) % 3) for index in range(9)]
        devices = (gpu(0, 40), gpu(1, 40), *([cpu()] if seed % 2 else []))
        of = graph(costs, edges, memory_bytes=[float(index % 5) for index in range(12)])
        problems.append(build_problem(of, devices, contiguous=True).problem)
    assert all(first_fit(problem) is not None for problem in problems)
    lines = "\n".join(map(to_json, problems))
    command = (sys.executable, "-c", dedent(WARM_STARTS))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["OPTIMAL True"] * 12
