"""Sets of items as decisions along an order of the items, and the states between the decisions.

Of the decided items only those matter that share a value with later items. Neural networks are long and narrow: in a
good order few values are open at a time, so all sets together have few states.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.solver.problem import MaxLoadProblem

_STARTS, _WIDTH, _NEAREST = 4, 10, 12
"""Number of orders to try, width of the beam of prefixes, and number of items that may extend a prefix."""

_ALL_STARTS, _FULL_WIDTH, _LEAST_WIDTH = 2_000, 40_000, 4
"""With many items, fewer orders and narrower beams are tried: the total of orders or of prefixes."""

_GUESSED_ABOVE = 4.0
"""The estimate of an order's states may be so many times too large (public workloads: 1.0 to 1.6 times)."""

_SLOTS = 31
"""The most open values in a state of 64 bits, with two bits each."""

_NEVER = np.int64(2**60)

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """The decision on an item: out of the set (0) or in it (1).

    `after[choice][state]` is the next state, `load[choice][state]` the load that the choice adds to an accelerator with
    this set; `num_after` is the number of next states.
    """

    item: int
    after: tuple[Numbers, Numbers]
    load: tuple[Numbers, Numbers]
    num_after: int


def narrow_frontier(problem: MaxLoadProblem, most_states: int) -> tuple[Step, ...] | None:
    """The items in an order with few states, at most `most_states` in all; None if the search finds no such order.

    There is a single state before the first step and after the last.
    """
    touching: list[list[int]] = [[] for _ in problem.items]
    for index, value in enumerate(problem.values):
        for item in value.items:
            touching[item].append(index)
    best = None
    starts = max(1, min(_STARTS, _ALL_STARTS // len(problem.items)))
    for start in range(0, len(problem.items), -(-len(problem.items) // starts)):
        order = _order(problem, touching, start, _GUESSED_ABOVE * most_states)
        steps = None if order is None else _steps(problem, order, touching, most_states)
        if steps is not None:
            best, most_states = steps, sum(step.num_after for step in steps) - 1
    return best


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The first items of an order.

    Attributes:
        decided: These items, as bits.
        last: The last of them; -1 for none.
        before: The prefix without it.
        open: For each value with items on both sides: the number of its items to come, and its only item so far (-1 if
            there are several).
        states: An estimate of the number of states along it.
    """

    decided: int = 0
    last: int = -1
    before: _Prefix | None = None
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    states: float = 0.0

    def then(self, item: int, problem: MaxLoadProblem, touching: Sequence[Sequence[int]]) -> _Prefix:
        """The prefix extended by an item. A value's only item so far is in or out; of several, also some may be in."""
        opened = self.open.copy()
        for value in touching[item]:
            left, first = opened.get(value, (len(problem.values[value].items), item))
            if left == 1:
                del opened[value]
            else:
                opened[value] = left - 1, item if first == item else -1
        lone = {first for _, first in opened.values()} - {-1}
        mixed = sum(first == -1 for _, first in opened.values())
        states = self.states + 2.0 ** len(lone) * 3.0**mixed
        return _Prefix(self.decided | 1 << item, item, self, opened, states)

    def nearest(self, problem: MaxLoadProblem) -> Iterator[int]:
        """Some items that share open values with these, first of values with few items to come; else the next item."""
        seen = set[int]()
        if not self.open:
            yield (~self.decided & self.decided + 1).bit_length() - 1
        for value in sorted(self.open, key=lambda value: self.open[value][0]):
            if len(seen) >= _NEAREST:
                return
            fresh = [item for item in problem.values[value].items if not self.decided >> item & 1 and item not in seen]
            seen.update(fresh)
            yield from fresh


def _order(
    problem: MaxLoadProblem, touching: Sequence[Sequence[int]], start: int, most_states: float
) -> list[int] | None:
    """An order that starts at an item, by beam search: of prefixes of a length, those with the fewest states go on.

    None if all estimates exceed `most_states`.
    """
    width = max(_LEAST_WIDTH, min(_WIDTH, _FULL_WIDTH // len(problem.items)))
    beam = [_Prefix().then(start, problem, touching)]
    for _ in range(len(problem.items) - 1):
        extended: dict[int, _Prefix] = {}
        for prefix in beam:
            for item in prefix.nearest(problem):
                rival = extended.get(prefix.decided | 1 << item)
                most = rival.states if rival else most_states + 1
                if prefix.states < most and (longer := prefix.then(item, problem, touching)).states < most:
                    extended[longer.decided] = longer
        beam = heapq.nsmallest(width, extended.values(), key=lambda prefix: prefix.states)
    if not beam:
        return None
    order, at = [], beam[0]
    while at.before is not None:
        order.append(at.last)
        at = at.before
    return order[::-1]


def _steps(
    problem: MaxLoadProblem, order: Sequence[int], touching: Sequence[Sequence[int]], most_states: int
) -> tuple[Step, ...] | None:
    """The steps of an order. A state has two bits per open value: items outside, items inside; both mean a cost."""
    left = [len(value.items) for value in problem.values]
    free, slot = list(range(0, 2 * _SLOTS, 2)), dict[int, int]()
    states = np.zeros(1, dtype=np.int64)
    steps: list[Step] = []
    accelerators = problem.accelerators
    for index in order:
        for value in touching[index]:
            if value not in slot:
                if not free:
                    return None
                slot[value] = free.pop()
        item = problem.items[index]
        own = (0, int(_NEVER) if accelerators <= item.barred else item.accelerator_cost)
        reached, loads = [], []
        for choice in (0, 1):
            state, load = states.copy(), np.full(len(states), own[choice], dtype=np.int64)
            for value in touching[index]:
                before = state >> slot[value] & 3
                state |= 1 + choice << slot[value]
                load += np.where(before == 2 - choice, problem.values[value].cost, 0)
            reached.append(state)
            loads.append(load)
        for value in touching[index]:
            left[value] -= 1
            if not left[value]:
                reached = [state & ~np.int64(3 << slot[value]) for state in reached]
                free.append(slot.pop(value))
        states, number = np.unique(np.concatenate(reached), return_inverse=True)
        after = (number[: len(reached[0])], number[len(reached[0]) :])
        steps.append(Step(index, after, (loads[0], loads[1]), len(states)))
        most_states -= len(states)
        if most_states < 0:
            return None
    return tuple(steps)
