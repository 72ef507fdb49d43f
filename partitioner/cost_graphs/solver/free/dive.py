"""Placements device by device: each accelerator takes the set that is worth most of all that is left."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from partitioner.cost_graphs.solver.bounds import CpuRelief
from partitioner.cost_graphs.solver.free.best_sets import BestSets, best_sets
from partitioner.cost_graphs.solver.free.frontier import Numbers, Step, narrow_frontier
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.loads import loads
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.coarsen import coarsen
from partitioner.cost_graphs.solver.reduce.contract import Contracted

_SIZES = (70, 110, 200, 400)
"""Items of the coarser graphs; few items are placed soon, many may be placed better."""

_MOST_STATES = 60_000
_MOST_POINTS = 12_000
_FRONTIER_WORK = 1e-3
"""What looking for an order with few states counts per item, in CP-SAT's deterministic units."""

_LEAST_WORK = 0.005
"""What a dive counts at least: one that is given up at once takes time too."""

_GRAIN = 10_000
"""Profits are kept apart to this part of an accelerator's share: coarse enough for few sums, fine enough to fill up."""

_CLOSE = 1e-3
"""How near to the best load known an aim is worth a dive."""

_NOISE = 0.03
_LEAST_SHARES = (0.985, 0.95, 0.8, 0.0)
_MEMORY_TRIES = 100


@dataclass(slots=True)
class _Level:
    """A coarser graph, and the work that dives on it have done.

    `missed` is the largest load that was aimed at in vain, `noise` what disturbs its prices.
    """

    graph: Contracted
    frontier: tuple[Step, ...]
    missed: int = -1
    noise: float = 0.0
    work: float = 0.0


class Diver:
    """One dive after the other: on each coarser graph, aiming at each load; later ones with prices disturbed."""

    def __init__(self, problem: MaxLoadProblem, heaviest: int, seed: int, budget: Budget) -> None:
        """Look for orders with few states. No merged item weighs more than `heaviest`."""
        self._problem = problem
        self._random = random.Random(seed)
        self._levels: list[_Level] = []
        for size in (*(size for size in _SIZES if size < len(problem.items)), len(problem.items)):
            graph = coarsen(problem, size, heaviest)
            budget.work -= _FRONTIER_WORK * len(graph.problem.items)
            frontier = narrow_frontier(graph.problem, _MOST_STATES)
            if frontier is not None and not budget.is_spent:
                self._levels.append(_Level(graph, frontier))

    def run(
        self, incumbent: Incumbent, bound: int, known: int, budget: Budget, work: float
    ) -> dict[tuple[int, ...], str]:
        """Dive for so much work, aiming between a bound and the best load known; what was found, and how."""
        end = budget.work - work
        found: dict[tuple[int, ...], str] = {}
        while self._levels and budget.work > end and not (budget.is_spent or incumbent.is_settled):
            level = min(self._levels, key=lambda one: one.work)
            before = budget.work
            budget.work -= _LEAST_WORK
            aim = bound if level.missed < bound else (level.missed + known) // 2
            placed = self._dive(level, aim, budget)
            level.work += before - budget.work
            load = None
            if placed is not None:
                load = max(loads(level.graph.problem, placed))
                found[level.graph.lift(placed)] = f"best sets of {len(level.graph.problem.items)} items"
                known = min(known, load)
            if load is None or load > aim:
                level.missed = aim
            if known - level.missed <= _CLOSE * known:
                level.missed, level.noise = -1, _NOISE
        return found

    def _dive(self, level: _Level, limit: int, budget: Budget) -> tuple[int, ...] | None:
        problem = level.graph.problem
        prices = self._prices(problem, level.noise)
        taken: dict[int, int] = {}
        load = [0] * len(problem.devices)
        accelerators = [index for index, device in enumerate(problem.devices) if not device.is_cpu]
        for rank, device in enumerate(accelerators):
            if not _may_fit(problem, taken, limit, len(accelerators) - rank):
                return None
            barred = {item for item, one in enumerate(problem.items) if device in one.barred}
            left = sum(int(price) for item, price in enumerate(prices) if item not in taken)
            for least in (int(share * left / (len(accelerators) - rank)) for share in _LEAST_SHARES):
                sets = best_sets(level.frontier, prices, limit, least, _MOST_POINTS, barred | taken.keys())
                budget.work -= sets.work
                if budget.is_spent:
                    return None
                if (chosen := _that_fits(problem, sets, problem.devices[device].capacity_bytes)) is not None:
                    load[device] = int(sets.loads[chosen])
                    taken.update(dict.fromkeys(sets.items(chosen), device))
                    break
        return _with_the_rest(problem, taken, load)

    def _prices(self, problem: MaxLoadProblem, noise: float) -> Numbers:
        """Work; what takes none is worth a little, so that nothing is left without need."""
        work = np.array([item.accelerator_cost for item in problem.items], dtype=float)
        num_accelerators = sum(not device.is_cpu for device in problem.devices)
        work *= [max(0.0, 1 + noise * self._random.gauss(0, 1)) for _ in problem.items]
        return np.maximum(1, (_GRAIN * num_accelerators * work / max(work.sum(), 1.0)).round().astype(np.int64))


def _may_fit(problem: MaxLoadProblem, taken: Collection[int], limit: int, num_accelerators: int) -> bool:
    """Whether the work that is left can be done within a load, even if moving values were free."""
    left = [0 if index in taken else item.accelerator_cost for index, item in enumerate(problem.items)]
    return sum(left) - CpuRelief(problem, left).within(limit) <= num_accelerators * limit


def _that_fits(problem: MaxLoadProblem, sets: BestSets, capacity_bytes: int | None) -> int | None:
    """The set worth most that a device has room for, if that is found soon."""
    for index in range(len(sets.loads))[: -1 - _MEMORY_TRIES : -1]:
        held = sum(problem.items[item].memory_bytes for item in sets.items(index)) if capacity_bytes is not None else 0
        if capacity_bytes is None or held <= capacity_bytes:
            return index
    return None


def _with_the_rest(problem: MaxLoadProblem, taken: dict[int, int], load: list[int]) -> tuple[int, ...] | None:
    """What no accelerator took goes, the dearest first, to whoever has the smallest load with it."""
    for index in sorted(set(range(len(problem.items))) - taken.keys(), key=lambda one: -problem.items[one].cpu_cost):
        item = problem.items[index]
        costs = {
            device: load[device] + item.cost_on(place)
            for device, place in enumerate(problem.devices)
            if device not in item.barred
        }
        if not costs:
            return None
        device = min(costs, key=lambda one: costs[one])
        taken[index], load[device] = device, costs[device]
    return tuple(taken[item] for item in range(len(problem.items)))
