"""Warm starts: put the items in an order and cut it optimally into an interval per device (a DP over intervals)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.solver.loads import assign_pieces, device_groups
from partitioner.cost_graphs.solver.problem import MaxLoadProblem

_NEVER = np.int64(2**61)
_MOST_WORK = 10**9

_Rule = Callable[[MaxLoadProblem, list[int], list[list[int]], list[int]], int]
"""Chooses the next of the ready items, given the values that touch each item and the items each value has left."""


def best_chain(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    """The best assignment that cuts any of a few orders into intervals; None if none is feasible.

    `precedes` of the problem must have no cycle.
    """
    cuts = (cut_order(problem, order) for order in dict.fromkeys(_orders(problem)))
    return min(filter(None, cuts), default=(0, None))[1]


def cut_order(problem: MaxLoadProblem, order: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The least max-load of this order cut into intervals, with its assignment; None if nothing is feasible."""
    groups = device_groups(problem)
    costs = [interval_costs(problem, order, group[0]) for group in groups]
    start = (0,) * len(groups)
    all_counts = np.ndindex(*(len(group) + 1 for group in groups))
    if math.prod(len(group) + 1 for group in groups) * len(order) ** 2 > _MOST_WORK:
        all_counts = _counts_in_sequence(problem, order, groups)
    table: dict[tuple[int, ...], NDArray[np.int64]] = {start: np.full(len(order) + 1, _NEVER)}
    table[start][0] = 0
    choice: dict[tuple[int, ...], list[tuple[int, NDArray[np.int64]]]] = {}
    # Devices in use only grow, so counts in lexicographic order see their predecessors first.
    for counts in all_counts:
        if counts == start:
            continue
        best = np.full(len(order) + 1, _NEVER)
        choice[counts] = []
        for group, count in enumerate(counts):
            before = table.get((*counts[:group], count - 1, *counts[group + 1 :]))
            if before is not None:
                ends = np.maximum(before[:, None], costs[group])
                begin = ends.argmin(axis=0)
                value = ends[begin, np.arange(len(order) + 1)]
                choice[counts].append((group, np.where(value < best, begin, -1)))
                best = np.minimum(best, value)
        table[counts] = best
    counts, end = tuple(len(group) for group in groups), len(order)
    if table[counts][end] >= _NEVER:
        return None
    value = int(table[counts][end])
    pieces: list[tuple[int, Sequence[int]]] = []
    while counts != start:
        # The last choice that improved is the best choice.
        group, begins = next(entry for entry in reversed(choice[counts]) if entry[1][end] >= 0)
        begin = int(begins[end])
        pieces.append((group, order[begin:end]))
        counts, end = (*counts[:group], counts[group] - 1, *counts[group + 1 :]), begin
    return value, assign_pieces(problem, pieces[::-1])


def _counts_in_sequence(
    problem: MaxLoadProblem, order: Sequence[int], groups: Sequence[Sequence[int]]
) -> Iterator[tuple[int, ...]]:
    """Counts of used devices per group, if devices come in a fixed sequence: by their pinned items, then the others."""
    places: dict[int, list[int]] = {index: [] for index in range(len(groups))}
    for place, number in enumerate(order):
        if barred := problem.items[number].barred:
            for index, group in enumerate(groups):
                if group[0] not in barred:
                    places[index].append(place)
    sequence = sorted(
        places, key=lambda index: sum(places[index]) / len(places[index]) if places[index] else len(order)
    )
    counts = [0] * len(groups)
    for index in sequence:
        for _ in groups[index]:
            counts[index] += 1
            yield tuple(counts)


def interval_costs(problem: MaxLoadProblem, order: Sequence[int], device: int) -> NDArray[np.int64]:
    """`costs[i, j]`: load of a device with the items i to j - 1 of the order; very large where it is not allowed."""
    size = len(order)
    place, items = problem.devices[device], [problem.items[index] for index in order]
    begin, end = np.arange(size + 1)[:, None], np.arange(size + 1)[None, :]

    def of_interval(figures: Sequence[int]) -> NDArray[np.int64]:
        sums = np.concatenate([[0], np.cumsum(np.array(figures, dtype=np.int64))])
        return sums[None, :] - sums[:, None]

    costs = of_interval([item.cost_on(place) for item in items])
    forbidden = begin > end
    if place.capacity_bytes is not None:
        forbidden = forbidden | (of_interval([item.memory_bytes for item in items]) > place.capacity_bytes)
    if not place.is_cpu:
        costs = costs + _interval_transfers(problem, order)
    forbidden = forbidden | (of_interval([int(device in item.barred) for item in items]) > 0)
    return np.where(forbidden, _NEVER, np.where(begin == end, 0, costs))


def _interval_transfers(problem: MaxLoadProblem, order: Sequence[int]) -> NDArray[np.int64]:
    """`transfers[i, j]`: cost of the values with items inside and outside of the interval i to j - 1."""
    size = len(order)
    position = {item: index for index, item in enumerate(order)}
    # All values, minus those with no item in the interval (it lies between two of their items), minus those with all
    # items in it. Both are rectangles of (i, j), added at their corners and summed up at the end.
    corners = np.zeros((size + 2, size + 2), dtype=np.int64)

    def add(first: int, last: int, low: int, high: int, cost: int) -> None:
        corners[first, low] += cost
        corners[last + 1, low] -= cost
        corners[first, high + 1] -= cost
        corners[last + 1, high + 1] += cost

    for value in problem.values:
        places = sorted(position[item] for item in value.items)
        for before, after in pairwise([-1, *places, size]):
            add(before + 1, after, before + 1, after, value.cost)
        add(0, places[0], places[-1] + 1, size, value.cost)
    missed = corners.cumsum(axis=0).cumsum(axis=1)[: size + 1, : size + 1]
    return sum(value.cost for value in problem.values) - missed


def _orders(problem: MaxLoadProblem) -> Iterator[tuple[int, ...]]:
    """Topological orders of the items, made from either end by three rules."""
    reverse = [(b, a) for a, b in problem.precedes]
    for pairs, step in ((problem.precedes, 1), (reverse, -1)):
        for rule in _RULES:
            yield tuple(_topological(problem, pairs, rule))[::step]


def _topological(problem: MaxLoadProblem, precedes: Sequence[tuple[int, int]], rule: _Rule) -> Iterator[int]:
    followers: list[list[int]] = [[] for _ in problem.items]
    waiting = [0] * len(problem.items)
    for a, b in precedes:
        followers[a].append(b)
        waiting[b] += 1
    touching: list[list[int]] = [[] for _ in problem.items]
    for index, value in enumerate(problem.values):
        for item in value.items:
            touching[item].append(index)
    left = [len(value.items) for value in problem.values]
    ready = [item for item, count in enumerate(waiting) if not count]
    while ready:
        item = rule(problem, ready, touching, left)
        ready.remove(item)
        yield item
        for index in touching[item]:
            left[index] -= 1
        for follower in followers[item]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)


def _first_ready(_problem: MaxLoadProblem, ready: list[int], _touching: list[list[int]], _left: list[int]) -> int:
    return ready[0]


def _last_ready(_problem: MaxLoadProblem, ready: list[int], _touching: list[list[int]], _left: list[int]) -> int:
    return ready[-1]


def _cheapest_to_cut_after(
    problem: MaxLoadProblem, ready: list[int], touching: list[list[int]], left: list[int]
) -> int:
    """The item after which the open values cost least: values that it begins, less those that it ends."""

    def opened(item: int) -> int:
        begun = sum(problem.values[v].cost for v in touching[item] if left[v] == len(problem.values[v].items))
        return begun - sum(problem.values[v].cost for v in touching[item] if left[v] == 1)

    return min(reversed(ready), key=opened)


_RULES: tuple[_Rule, ...] = (_first_ready, _last_ready, _cheapest_to_cut_after)
