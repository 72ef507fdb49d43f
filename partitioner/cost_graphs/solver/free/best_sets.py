"""The most profitable sets of items for an accelerator within a load: an exact DP over the states of a frontier."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.solver.free.frontier import Numbers, Step

_POINTS_PER_WORK = 1e7
"""Pairs of load and profit that take as long as a deterministic unit of CP-SAT."""

_TRADES = 20
"""Lagrange multipliers (profit per load) that bound what the remaining items can add."""

_Trail = list[tuple[Numbers, NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class BestSets:
    """Sets that do not dominate each other, with rising loads and profits.

    Attributes:
        loads: Load of an accelerator with each set.
        profits: Sum of the prices in each set.
        is_complete: Whether no better set was left out.
        work: Work to find them, in CP-SAT's deterministic units.
    """

    loads: Numbers
    profits: Numbers
    is_complete: bool
    work: float
    _frontier: Sequence[Step]
    _trail: _Trail

    def items(self, index: int) -> list[int]:
        """The items of a set."""
        chosen = []
        for (came_from, is_inside), step in zip(reversed(self._trail), reversed(self._frontier), strict=True):
            if is_inside[index]:
                chosen.append(step.item)
            index = int(came_from[index])
        return chosen


def best_sets(
    frontier: Sequence[Step],
    prices: Numbers,
    limit: int,
    least: int,
    most_points: int,
    without: Collection[int] = (),
) -> BestSets:
    """The sets with a load of at most `limit` whose profit is at least `least`.

    Args:
        frontier: The items, in an order with few states.
        prices: Price of each item; the fewer different sums there are, the faster.
        limit: The largest load.
        least: The least profit.
        most_points: If there are more different sets, only the most promising are followed.
        without: Items that no set may have.
    """
    trades = _trades(frontier, prices, limit, without)
    rests = list(_rests(frontier, prices, trades, without))[::-1]
    state = load = profit = np.zeros(1, dtype=np.int64)
    trail: _Trail = []
    is_complete, points = True, sum(rest.size for rest in rests)
    per_load = trades[:, None]
    for step, rest in zip(frontier, rests[1:], strict=True):
        choices = (0,) if step.item in without else (0, 1)
        count = len(state)
        next_load = np.concatenate([load + step.load[choice][state] for choice in choices])
        next_profit = np.concatenate([profit + choice * prices[step.item] for choice in choices])
        state = np.concatenate([step.after[choice][state] for choice in choices])
        points += len(state)
        room = limit - next_load
        promise = next_profit + (rest.T.take(state, axis=1) + per_load * np.maximum(room, 0)).min(axis=0)
        kept = np.flatnonzero((room >= 0) & (promise >= least - 1e-6))
        kept = kept[_undominated(state[kept], next_load[kept], next_profit[kept], limit)]
        if len(kept) > most_points:
            is_complete = False
            kept = np.sort(kept[np.argpartition(-promise[kept], most_points)[:most_points]])
        state, load, profit = state[kept], next_load[kept], next_profit[kept]
        trail.append((kept % count, kept >= count))
    return BestSets(load, profit, is_complete, points / _POINTS_PER_WORK, frontier, trail)


def _trades(frontier: Sequence[Step], prices: Numbers, limit: int, without: Collection[int]) -> NDArray[np.float64]:
    """Multipliers (profit per load): the best rate of a full device, and rates around it."""
    rates = np.concatenate([[0.0], np.geomspace(3e-3, 10, 24)]) * (np.abs(prices).sum() or 1) / max(limit, 1)
    *_, whole = _rests(frontier, prices, rates, without)
    best = rates[(whole[0] + rates * limit).argmin()]
    return np.append(np.linspace(0, 3 * best, _TRADES - 1), 6 * best)


def _rests(
    frontier: Sequence[Step], prices: Numbers, trades: NDArray[np.float64], without: Collection[int]
) -> Iterator[NDArray[np.float64]]:
    """By position and multiplier: the most profit of the items from there on, less the multiplier times their load."""
    rest = np.zeros((1, len(trades)))
    yield rest
    for step in reversed(frontier):
        outside = rest[step.after[0]] - step.load[0][:, None] * trades
        if step.item in without:
            rest = outside
        else:
            rest = np.maximum(outside, rest[step.after[1]] - step.load[1][:, None] * trades + prices[step.item])
        yield rest


def _undominated(state: Numbers, load: Numbers, profit: Numbers, limit: int) -> Numbers:
    """Among equal states, the sets with more profit than all sets of no larger load."""
    if not len(state):
        return np.arange(0)
    place = state * (limit + 1) + load
    order = np.argsort(place, kind="stable")
    base = profit - profit.min()
    place, ranked = place[order], (state * (base.max() + 1) + base)[order]
    best = np.maximum.accumulate(ranked)
    is_best = np.concatenate([[True], ranked[1:] > best[:-1]])
    is_best[:-1] &= (place[:-1] < place[1:]) | (ranked[:-1] >= ranked[1:])
    return order[is_best]
