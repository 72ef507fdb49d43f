"""Contiguous pieces by an exact DP: a piece is the difference of two downsets (J. Tarnawski et al., NeurIPS 2020).

Where every load must stay within a limit, few downsets are possible after each device: their work must not be too much
for the devices so far, nor the rest too much for the later devices. Limits near the bound are soon refuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.solver.bounds import CpuRelief
from partitioner.cost_graphs.solver.contiguous.downsets import Bits, Downsets
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.loads import assign_pieces, device_groups
from partitioner.cost_graphs.solver.problem import MaxLoadProblem

_MOST_DOWNSETS, _MOST_PAIRS = 20_000, 3 * 10**7
"""A graph with more downsets at a place in the chain, or more pairs of them around a device, is too wide."""

_MOST_COUNTS = 512
"""The most combinations of device counts per group."""

_PAIRS_AT_ONCE = 10**6
_PAIRS_PER_WORK = 4e7
"""Pairs that take as long as a deterministic unit of CP-SAT."""

_FIRST_STEP, _LONGER = 0.004, 2.5
"""Distance of the first limit above the bound, and the factor by which each next distance grows."""

_NEVER = np.int64(2**61)

Numbers = NDArray[np.int64]
Counts = tuple[int, ...]
"""Number of devices of each group."""


class _TooWideError(Exception):
    """There are too many downsets, or no time is left for them."""


def settle_by_pieces(problem: MaxLoadProblem, incumbent: Incumbent, upper_bound: int, budget: Budget) -> None:
    """Find the best assignment within rising limits, until there is an assignment or there are too many downsets.

    Args:
        problem: The problem; `precedes` has no cycle.
        incumbent: Gets the optimum, and every bound before it.
        upper_bound: A limit of all loads, or the load of the incumbent.
        budget: The budget to charge.
    """
    pieces, bound, step = _Pieces(problem, budget), incumbent.lower_bound, _FIRST_STEP
    while not incumbent.is_settled:
        limit = min(bound + math.ceil(step * max(bound, 1)), upper_bound)
        step *= _LONGER
        try:
            result = pieces.best_within(limit)
        except _TooWideError:
            return
        if result is not None:
            load, assignment = result
            incumbent.offer(assignment, "DP over downsets")
            incumbent.raise_bound(load)
        elif limit == upper_bound:
            incumbent.prove_infeasible()
        else:
            incumbent.raise_bound(limit + 1)


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Possible contents (downsets) of the first devices.

    Attributes:
        inside: A row of bits, one per item, for each.
        counts: Number of items inside of each value.
        largest: The smallest possible largest load of these devices.
        last: The last device's group, and the downset before it.
    """

    inside: Bits
    counts: Numbers
    largest: Numbers
    last: Numbers

    def some(self, which: slice | Bits) -> _Prefixes:
        """Some of them."""
        return _Prefixes(self.inside[which], self.counts[which], self.largest[which], self.last[which])


class _Pieces:
    """The DP of a problem."""

    def __init__(self, problem: MaxLoadProblem, budget: Budget) -> None:
        self._problem, self._budget = problem, budget
        self._groups = device_groups(problem)
        self._downsets = Downsets(problem)
        self._work = [item.accelerator_cost for item in problem.items]
        self._relief = CpuRelief(problem, self._work)
        self._sizes = np.array([len(value.items) for value in problem.values], dtype=np.intp)
        self._touched = np.array([item for value in problem.values for item in value.items], dtype=np.intp)
        self._costs = np.array([value.cost for value in problem.values], dtype=np.float64)

    def best_within(self, limit: int) -> tuple[int, tuple[int, ...]] | None:
        """The least max-load up to a limit, with its assignment; None if there is none.

        Raises:
            _TooWideError: There are too many downsets, or no time is left.
        """
        if math.prod(len(group) + 1 for group in self._groups) > _MOST_COUNTS:
            raise _TooWideError
        end = tuple(len(group) for group in self._groups)
        table: dict[Counts, _Prefixes] = {}
        # Devices in use only grow, so counts in lexicographic order see their predecessors first.
        for counts in np.ndindex(*(count + 1 for count in end)):
            prefixes = self._prefixes(counts, end, limit)
            table[counts] = self._reached(prefixes, counts, table, limit) if any(counts) else prefixes
        if not len(table[end].largest):
            return None
        return int(table[end].largest[0]), assign_pieces(self._problem, list(self._walk(table, end))[::-1])

    def _prefixes(self, counts: Counts, end: Counts, limit: int) -> _Prefixes:
        """Possible contents of these devices; the largest loads are still to be computed."""
        left = tuple(whole - count for whole, count in zip(end, counts, strict=True))
        least, most = sum(self._work) - self._room(left, limit), self._room(counts, limit)
        if counts == end or not any(counts):
            inside = np.full((int(least <= most), len(self._work)), counts == end)
        elif (downsets := self._downsets.between(least, most, _MOST_DOWNSETS)) is not None:
            inside = downsets
        else:
            raise _TooWideError
        largest = np.full(len(inside), _NEVER if any(counts) else 0, dtype=np.int64)
        counts_of_values = np.add.reduceat(
            inside[:, self._touched], np.cumsum(self._sizes) - self._sizes, axis=1, dtype=np.int64
        )
        return _Prefixes(inside, counts_of_values, largest, np.zeros((len(inside), 2), dtype=np.int64))

    def _room(self, counts: Counts, limit: int) -> int:
        """Bound on the accelerators' work that these devices can take within a limit."""
        devices = [self._problem.devices[group[0]] for group in self._groups]
        num_cpus = sum(count for count, device in zip(counts, devices, strict=True) if device.is_cpu)
        return (sum(counts) - num_cpus) * limit + self._relief.within(limit, num_cpus)

    def _reached(self, prefixes: _Prefixes, counts: Counts, table: dict[Counts, _Prefixes], limit: int) -> _Prefixes:
        """The reachable prefixes, each with its best last device."""
        for index, count in enumerate(counts):
            if count:
                before = table[*counts[:index], count - 1, *counts[index + 1 :]]
                self._complete(prefixes, before, index, limit)
        return prefixes.some(prefixes.largest <= limit)

    def _complete(self, prefixes: _Prefixes, before: _Prefixes, group: int, limit: int) -> None:
        """Add a device of a group that takes the items of each prefix beyond a smaller prefix."""
        num_pairs = len(before.inside) * len(prefixes.inside)
        self._budget.work -= num_pairs / _PAIRS_PER_WORK
        if num_pairs > _MOST_PAIRS or self._budget.is_spent:
            raise _TooWideError
        if not num_pairs:
            return
        rows = max(1, _PAIRS_AT_ONCE // len(prefixes.inside))
        for first in range(0, len(before.inside), rows):
            block = before.some(slice(first, first + rows))
            loads = self._loads(block, prefixes, self._groups[group][0])
            ends = np.maximum(loads, block.largest[:, None])
            best = ends.argmin(axis=0)
            value = ends[best, np.arange(len(best))]
            is_better = value < prefixes.largest
            prefixes.largest[is_better] = value[is_better]
            prefixes.last[is_better, 0] = group
            prefixes.last[is_better, 1] = first + best[is_better]

    def _loads(self, before: _Prefixes, after: _Prefixes, device: int) -> Numbers:
        """`loads[i, j]`: load of a device with the items of `after[j]` that are not in `before[i]`; or `_NEVER`."""
        place, items = self._problem.devices[device], self._problem.items

        def beyond(figures: list[int]) -> Numbers:
            each = np.array(figures, dtype=np.int64)
            return (after.inside @ each)[None, :] - (before.inside @ each)[:, None]

        loads = beyond([item.cost_on(place) for item in items])
        if not place.is_cpu:
            loads = loads + self._moved(before.counts, after.counts)
        mixed = before.inside.any(axis=0) & ~after.inside.all(axis=0)
        lost = before.inside[:, mixed].astype(np.float32) @ (~after.inside[:, mixed]).T.astype(np.float32)
        never = lost > 0
        if place.capacity_bytes is not None:
            never |= beyond([item.memory_bytes for item in items]) > place.capacity_bytes
        never |= beyond([int(device in item.barred) for item in items]) > 0
        return np.where(never, _NEVER, loads)

    def _moved(self, before: Numbers, after: Numbers) -> Numbers:
        """Cost of the values of which a piece has some items but not all.

        A piece has none of a value's items where their number did not change, and all where it rose from 0 to all.
        """
        pairs = [(value, count) for value in range(before.shape[1]) for count in np.unique(before[:, value])]
        values, had = np.array([value for value, _ in pairs], dtype=np.intp), np.array([count for _, count in pairs])
        left = before[:, values] == had
        same = (after[:, values] == had) | ((had == 0) & (after[:, values] == self._sizes[values]))
        saved = same * self._costs[values]
        # Few values are cut both before and after the piece; for the others a sum is enough.
        always, alike = left.all(axis=0), (same == same[0]).all(axis=0) & ~left.all(axis=0)
        both = ~(always | alike)
        total = saved[:, always].sum(axis=1)[None, :] + (left[:, alike] @ saved[0, alike])[:, None]
        total = total + left[:, both].astype(np.float64) @ saved[:, both].T
        return (self._costs.sum() - total).astype(np.int64)

    def _walk(self, table: dict[Counts, _Prefixes], counts: Counts) -> Iterator[tuple[int, list[int]]]:
        """The pieces from the last to the first."""
        index = 0
        while any(counts):
            here = table[counts]
            group, before = here.last[index]
            counts = (*counts[:group], counts[group] - 1, *counts[group + 1 :])
            there = table[counts]
            yield int(group), np.flatnonzero(here.inside[index] & ~there.inside[before]).tolist()
            index = before
