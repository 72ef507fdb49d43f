"""Placements device by device: each accelerator takes the most profitable set of the remaining items."""

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
"""Items of the coarser graphs; few items are fast to place, many allow better placements."""

_MOST_STATES = 60_000
_MOST_POINTS = 12_000
_FRONTIER_WORK = 1e-3
"""Work per item of the search for an order with few states, in CP-SAT's deterministic units."""

_LEAST_WORK = 0.005
"""The least work of a dive: a dive that ends at once takes time too."""

_GRAIN = 10_000
"""Grain of prices, as a part of an accelerator's share: coarse enough for few sums, fine enough to fill devices."""

_CLOSE = 1e-3
"""The least distance of a useful aim from the load of the incumbent."""

_NOISE = 0.03
_LEAST_SHARES = (0.985, 0.95, 0.8, 0.0)
_MEMORY_TRIES = 100


@dataclass(slots=True)
class _Level:
    """A coarser graph, and the work of the dives on it.

    `missed` is the largest load that was aimed at in vain, `noise` the random change of its prices.
    """

    graph: Contracted
    frontier: tuple[Step, ...]
    missed: int = -1
    noise: float = 0.0
    work: float = 0.0


class Diver:
    """Runs dives in sequence, on all coarser graphs and for many aims; later dives change the prices at random."""

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
        self, incumbent: Incumbent, bound: int, upper_bound: int, budget: Budget, work: float
    ) -> dict[tuple[int, ...], str]:
        """Dive for an amount of work, with aims between the bounds; returns placements, and the method of each."""
        end = budget.work - work
        placements: dict[tuple[int, ...], str] = {}
        while self._levels and budget.work > end and not (budget.is_spent or incumbent.is_settled):
            level = min(self._levels, key=lambda level: level.work)
            before = budget.work
            budget.work -= _LEAST_WORK
            aim = bound if level.missed < bound else (level.missed + upper_bound) // 2
            placed = self._dive(level, aim, budget)
            level.work += before - budget.work
            load = None
            if placed is not None:
                load = max(loads(level.graph.problem, placed))
                placements[level.graph.lift(placed)] = f"best sets of {len(level.graph.problem.items)} items"
                upper_bound = min(upper_bound, load)
            if load is None or load > aim:
                level.missed = aim
            if upper_bound - level.missed <= _CLOSE * upper_bound:
                level.missed, level.noise = -1, _NOISE
        return placements

    def _dive(self, level: _Level, limit: int, budget: Budget) -> tuple[int, ...] | None:
        problem = level.graph.problem
        prices = self._prices(problem, level.noise)
        taken: dict[int, int] = {}
        load = [0] * len(problem.devices)
        accelerators = [index for index, device in enumerate(problem.devices) if not device.is_cpu]
        for rank, device in enumerate(accelerators):
            if not _may_fit(problem, taken, limit, len(accelerators) - rank):
                return None
            barred = {item for item, entry in enumerate(problem.items) if device in entry.barred}
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
        """Prices by work; items without work have a small price, so that no item is left out without need."""
        work = np.array([item.accelerator_cost for item in problem.items], dtype=float)
        num_accelerators = sum(not device.is_cpu for device in problem.devices)
        work *= [max(0.0, 1 + noise * self._random.gauss(0, 1)) for _ in problem.items]
        return np.maximum(1, (_GRAIN * num_accelerators * work / max(work.sum(), 1.0)).round().astype(np.int64))


def _may_fit(problem: MaxLoadProblem, taken: Collection[int], limit: int, num_accelerators: int) -> bool:
    """Whether the remaining work can be done within a load if moving values is free."""
    left = [0 if index in taken else item.accelerator_cost for index, item in enumerate(problem.items)]
    return sum(left) - CpuRelief(problem, left).within(limit) <= num_accelerators * limit


def _that_fits(problem: MaxLoadProblem, sets: BestSets, capacity_bytes: int | None) -> int | None:
    """The most profitable set for which a device has memory, if it is among the first."""
    for index in range(len(sets.loads))[: -1 - _MEMORY_TRIES : -1]:
        held = sum(problem.items[item].memory_bytes for item in sets.items(index)) if capacity_bytes is not None else 0
        if capacity_bytes is None or held <= capacity_bytes:
            return index
    return None


def _with_the_rest(problem: MaxLoadProblem, taken: dict[int, int], load: list[int]) -> tuple[int, ...] | None:
    """Place the remaining items, the most expensive first, each on the device with the smallest resulting load."""
    for index in sorted(
        set(range(len(problem.items))) - taken.keys(), key=lambda index: -problem.items[index].cpu_cost
    ):
        item = problem.items[index]
        costs = {
            device: load[device] + item.cost_on(place)
            for device, place in enumerate(problem.devices)
            if device not in item.barred
        }
        if not costs:
            return None
        device = min(costs, key=lambda device: costs[device])
        taken[index], load[device] = device, costs[device]
    return tuple(taken[item] for item in range(len(problem.items)))
