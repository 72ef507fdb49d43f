"""Downsets: sets of items with all their predecessors, which are the possible contents of a chain's first devices."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.solver.problem import MaxLoadProblem

Bits = NDArray[np.bool_]


class Downsets:
    """The downsets of a problem, whose `precedes` must have no cycle."""

    def __init__(self, problem: MaxLoadProblem) -> None:
        """Sort the items."""
        self._work = [item.accelerator_cost for item in problem.items]
        self._predecessors: list[list[int]] = [[] for _ in problem.items]
        for a, b in problem.precedes:
            self._predecessors[b].append(a)
        self._row = tuple(TopologicalSorter(dict(enumerate(self._predecessors))).static_order())
        self._before = work_before(problem, problem.precedes)
        self._after = work_before(problem, [(b, a) for a, b in problem.precedes])

    def between(self, least: int, most: int, at_most: int) -> Bits | None:
        """The downsets with a work on accelerators between `least` and `most`, each a row of bits, one per item.

        None if there are more than `at_most` at some point of the enumeration.
        """
        whole = sum(self._work)
        open_items = [item for item in self._row if whole - self._after[item] >= least and self._before[item] <= most]
        column = {item: index for index, item in enumerate(open_items)}
        sure = [item for item in self._row if whole - self._after[item] < least]
        work = np.array([sum(self._work[item] for item in sure)], dtype=np.int64)
        left = sum(self._work[item] for item in open_items)
        chosen = np.zeros((1, 0), dtype=np.bool_)
        for item in open_items:
            left -= self._work[item]
            needed = [column[predecessor] for predecessor in self._predecessors[item] if predecessor in column]
            without = np.flatnonzero(work + left >= least)
            with_it = np.flatnonzero(chosen[:, needed].all(axis=1) & (work + self._work[item] <= most))
            if len(without) + len(with_it) > at_most:
                return None
            inside = np.arange(len(without) + len(with_it)) >= len(without)
            both = np.concatenate([without, with_it])
            chosen = np.column_stack([chosen[both], inside])
            work = work[both] + inside * self._work[item]
        bits = np.zeros((len(chosen), len(self._work)), dtype=np.bool_)
        bits[:, sure] = True
        bits[:, open_items] = chosen
        return bits[(least <= work) & (work <= most)]


def work_before(problem: MaxLoadProblem, precedes: Sequence[tuple[int, int]]) -> list[int]:
    """Work on accelerators of each item with all its predecessors."""
    costs = np.array([item.accelerator_cost for item in problem.items], dtype=np.int64)
    predecessors: dict[int, list[int]] = {item: [] for item in range(len(costs))}
    for a, b in precedes:
        predecessors[b].append(a)
    before = np.eye(len(costs), dtype=np.bool_)
    for item in TopologicalSorter(predecessors).static_order():
        for a in predecessors[item]:
            before[item] |= before[a]
    return [int(costs[row].sum()) for row in before]
