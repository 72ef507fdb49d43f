"""Bounds without a search, from OR-Tools in a process of its own: never above the optimum, and as high as promised."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from instances import best_by_trying, cpu, gpu, graph, max_load

from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.solver.client import solve
from partitioner.cost_graphs.solver.problem import LoadDevice
from partitioner.ir.json import to_json

SCRIPT = """
import sys
from partitioner.ir.json import from_json
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.free.prices import PriceBound
from partitioner.cost_graphs.solver.free.device_bound import raise_by_items

for line in sys.stdin:
    problem = from_json(line, MaxLoadProblem)
    by_items, by_prices = (Incumbent(problem, lambda answer: None) for _ in range(2))
    raise_by_items(problem, by_items)
    budget = Budget(60.0, 24.0)
    possible = sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items) + 1
    PriceBound(problem, budget).run(by_prices, possible, budget, 24.0)
    print(by_items.lower_bound, by_prices.lower_bound)
"""


def bounds(asked: list[tuple[CostGraph, tuple[LoadDevice, ...]]]) -> list[tuple[float, float]]:
    """By single items and by prices, in the graphs' units."""
    built = [build_problem(of, devices) for of, devices in asked]
    lines = "\n".join(to_json(one.problem) for one in built)
    done = subprocess.run((sys.executable, "-c", SCRIPT), input=lines, capture_output=True, text=True, check=True)
    told = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return [(one.unit * items, one.unit * prices) for one, (items, prices) in zip(built, told, strict=True)]


def test_no_bound_is_above_the_optimum() -> None:
    chance = random.Random(5)
    asked = []
    for _ in range(40):
        size = chance.randint(2, 7)
        of = graph(
            [float(chance.randint(0, 9)) for _ in range(size)],
            [(a, b) for b in range(size) for a in range(b) if chance.random() < 0.4],
            [chance.choice([0.5, 1.0, 4.0]) for _ in range(size)],
            needs_cpu=[chance.random() < 0.1 for _ in range(size)],
        )
        asked.append((of, (gpu(0), gpu(1), cpu())))
    for (of, devices), found in zip(asked, bounds(asked), strict=True):
        best = best_by_trying(of, devices, contiguous=False)
        assert best is not None and max(found) <= best + 1e-8


def test_what_prices_and_surroundings_prove() -> None:
    three = graph([10.0, 10.0, 10.0], [])
    # Two pairs of 4 and 30, 30 to part them: whoever has a 4 has 34. One of them a CPU could take, for 24, not both.
    pairs = graph([4.0, 30.0, 4.0, 30.0], [(0, 1), (2, 3)], [30.0] * 4, cpu_cost=[24.0, 1e3, 24.0, 1e3])
    (_, of_three), (of_pairs, _) = bounds([(three, (gpu(0), gpu(1))), (pairs, (gpu(0), gpu(1), cpu()))])
    assert of_three == pytest.approx(20.0)  # two of three items on one of two devices; their work alone is 15 each
    assert of_pairs == pytest.approx(34.0)


def test_prices_of_many_small_items_are_rounded_as_one() -> None:
    """A row of 150 items of 1.0 and 150 of 1.4, all 20.0 apart: at best a device has all of 1.0, 21 of 1.4, one cut.

    Bug: in units of a 300th, 1 / 180 and 1.4 / 180 were both 2 when rounded one by one; the bound ended at 195.
    """
    row = graph([1.0] * 150 + [1.4] * 150, [(item, item + 1) for item in range(299)], [20.0] * 300)
    ((_, by_prices),) = bounds([(row, (gpu(0), gpu(1)))])
    best = 20.0 + 1.4 * 129
    assert 0.995 * best <= by_prices <= best + 1e-6


def test_prices_end_where_glop_gives_up() -> None:
    """On 260 items that are nearly alike it did, and took the solver's process with it."""
    row = graph([1.0] * 130 + [1.4] * 130, [(item, item + 1) for item in range(259)], [20.0] * 260)
    ((_, by_prices),) = bounds([(row, (gpu(0), gpu(1)))])
    assert 0.0 < by_prices <= 176.8


def test_prices_go_on_where_presolve_made_glop_give_up() -> None:
    """It did in a row of 200 items that cost and hand on what chance says, and the bound ended 0.7 % too low."""
    chance = random.Random(3)
    size = 200
    edges = [(item, item + 1) for item in range(size - 1)] + [(item, item + 3) for item in range(0, size - 3, 2)]
    row = graph([chance.uniform(1, 3) for _ in range(size)], edges, [chance.uniform(5, 20) for _ in range(size)])
    devices = (gpu(0), gpu(1), gpu(2))
    best = min(
        max_load(row, {str(item): devices[(item >= second) + (item >= third)] for item in range(size)})
        for second in range(60, 74)
        for third in range(126, 141)
    )
    ((_, by_prices),) = bounds([(row, devices)])
    assert 0.999 * best <= by_prices <= best + 1e-6


def test_sets_known_at_first_are_within_the_load() -> None:
    """Bug: the longest intervals had an item too many, so loads below the optimum seemed possible: 17 of 19 here."""
    edges = [(item, item + 1) for item in range(6)]
    row = graph([7.0, 7.0, 1.0, 5.0, 9.0, 8.0, 7.0], edges, [3.0, 4.0, 3.0, 5.0, 2.0, 5.0, 0.0])
    devices = (gpu(0), gpu(1), gpu(2))
    ((_, by_prices),) = bounds([(row, devices)])
    assert best_by_trying(row, devices, contiguous=False) == pytest.approx(19.0)
    assert 18.99 <= by_prices <= 19.0 + 1e-8


def test_prices_become_finer_where_rounding_hides_what_they_tell() -> None:
    """Bug: they went on to another load, and the bound of these 30 items ended at 28.522."""
    chance = random.Random(37)
    size = chance.choice((30, 60))
    edges = [(item, item + 1) for item in range(size - 1)] + [(item, item + 4) for item in range(0, size - 4, 3)]
    row = graph([chance.uniform(1, 3) for _ in range(size)], edges, [chance.uniform(1, 10) for _ in range(size)])
    devices = (gpu(0), gpu(1), gpu(2), cpu())
    built = build_problem(row, devices, time_limit_seconds=600)
    answer = solve(built.problem).answer
    assert answer.status == "optimal" and answer.max_load is not None
    ((_, by_prices),) = bounds([(row, devices)])
    assert 28.59 <= by_prices <= built.unit * answer.max_load + 1e-8
