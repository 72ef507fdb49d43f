"""Sets of items, decided one item after the other along a row: what is left to remember on the way.

Of the items decided so far only those matter that share a value with later ones. Neural networks are long and narrow:
in a good order few values are open at a time, so all sets together pass through few states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.max_load import MaxLoadProblem

_STARTS = 12
_SLOTS = 31
"""Open values that a state of 64 bits has room for, two bits each."""

_NEVER = np.int64(2**60)

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """One item's turn: out of the set (0) or in it (1).

    `after[choice][state]` is the state that follows, `load[choice][state]` what an accelerator with this set pays for
    the choice; `num_after` counts the states that follow.
    """

    item: int
    after: tuple[Numbers, Numbers]
    load: tuple[Numbers, Numbers]
    num_after: int


def narrow_row(problem: MaxLoadProblem, most_states: int) -> tuple[Step, ...] | None:
    """The items in a row with few states, all together at most `most_states`; None if none was found.

    The first step is left by one state, as is the last.
    """
    touching: list[list[int]] = [[] for _ in problem.items]
    for index, value in enumerate(problem.values):
        for item in value.items:
            touching[item].append(index)
    best = None
    for start in range(0, len(problem.items), -(-len(problem.items) // _STARTS)):
        steps = _steps(problem, _order(problem, touching, start), touching, most_states)
        if steps is not None:
            best, most_states = steps, sum(step.num_after for step in steps) - 1
    return best


def _order(problem: MaxLoadProblem, touching: Sequence[Sequence[int]], start: int) -> list[int]:
    """From an item on, always a neighbour that opens the least and closes the most; of those what waits longest."""
    left = [len(value.items) for value in problem.values]
    opened: dict[int, int] = {}
    undecided = dict.fromkeys(range(len(problem.items)))
    order: list[int] = []
    near = {start}

    def price(item: int) -> tuple[int, int, int]:
        opens = any(value not in opened for value in touching[item])
        closes = sum(left[value] == 1 for value in touching[item])
        waits = min((opened[value] for value in touching[item] if value in opened), default=0)
        return opens - closes, waits, item

    while undecided:
        item = min(near or [next(iter(undecided))], key=price)
        near.discard(item)
        del undecided[item]
        order.append(item)
        for value in touching[item]:
            opened.setdefault(value, len(order))
            left[value] -= 1
            near.update(other for other in problem.values[value].items if other in undecided)
    return order


def _steps(
    problem: MaxLoadProblem, order: Sequence[int], touching: Sequence[Sequence[int]], most_states: int
) -> tuple[Step, ...] | None:
    """A state holds two bits for each open value: has it items outside, has it items inside; it is paid with both."""
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
