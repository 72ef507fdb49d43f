"""The chain of a step: ops of its longest path that nearly all other ops come before or behind, its milestones.

What comes behind one milestone and before the next is done between the two. So a device that holds all of it does it
one op after the other, and the milestones and what is between them take a time that adds up over the devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.step_ops import Sources, StepOps

Numbers = NDArray[np.intp]

# The share of a step that may be left out: ops beside milestones, such as the gradients of a long skip connection.
_MOST_BESIDE = 0.003


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Milestones, in the order in which they run, and where other ops are.

    Attributes:
        milestones: Indices of ops.
        behind: Of each op, the number of the last milestone before it, or its own number if it is one; -1 for none.
        is_between: Whether an op comes behind that milestone and before the next one.
        turn: The number of the milestone of the last item: about where forward ends and backward begins.
    """

    milestones: Numbers
    behind: Numbers
    is_between: NDArray[np.bool_]
    turn: int

    @classmethod
    def of(cls, ops: StepOps) -> Chain:
        """That of the longest path through ops that wait for rows."""
        path = _longest_path(ops)
        last, first = _places_on(path, ops)
        on_path = np.zeros(len(ops.seconds), dtype=bool)
        on_path[path] = True
        has_both = (last >= 0) & (first < len(path))
        seconds = np.where(has_both & ~on_path, ops.seconds, 0.0)
        numbers = np.flatnonzero(_are_milestones(last, first, seconds, len(path), _MOST_BESIDE * ops.seconds.sum()))
        behind = np.searchsorted(numbers, last, side="right") - 1
        is_milestone = np.zeros_like(on_path)
        is_milestone[path[numbers]] = True
        next_milestone = np.append(numbers, -1)[behind + 1]
        return cls(
            milestones=path[numbers],
            behind=behind,
            is_between=has_both & (behind >= 0) & (first <= next_milestone) & ~is_milestone,
            turn=int(ops.place[path[numbers]].argmax()),
        )


def _longest_path(ops: StepOps) -> Numbers:
    """Its ops, the first one first; transfers take no time."""
    ends, before = np.zeros(len(ops.seconds)), [-1] * len(ops.seconds)
    for target, sources in enumerate(_by_row(ops)):
        if sources:
            before[target] = max((source for source, _ in sources), key=ends.__getitem__)
            ends[target] = ends[before[target]]
        ends[target] += ops.seconds[target]
    path = [int(np.where(ops.waits_for_rows, ends, -1.0).argmax())]
    while (source := before[path[-1]]) >= 0:
        path.append(source)
    return np.array(path[::-1], dtype=np.intp)


def _places_on(path: Numbers, ops: StepOps) -> tuple[Numbers, Numbers]:
    """Of each op, the last place on the path before it and the first behind it, or its own; -1 and the path's length
    for none."""
    last, first = np.full(len(ops.seconds), -1), np.full(len(ops.seconds), len(path))
    last[path] = first[path] = np.arange(len(path))
    waits = list(enumerate(_by_row(ops)))
    for target, sources in waits:
        last[target] = max([last[target], *(last[source] for source, _ in sources)])
    for target, sources in reversed(waits):
        for source, _ in sources:
            first[source] = min(first[source], first[target])
    return last, first


def _are_milestones(
    last: Numbers, first: Numbers, seconds: Floats, length: int, most_beside: float
) -> NDArray[np.bool_]:
    """Of each op of the path, whether no op is beside it but for some that take little time, all together.

    An op is beside what the path has between the last op before it and the first one behind it.
    """
    is_left = (seconds > 0) & (last + 1 < first)
    while True:
        ops = np.flatnonzero(is_left)
        count, beside = (_over(last[ops], first[ops], values, length) for values in (np.ones(len(ops)), seconds[ops]))
        least = int(np.where(count > 0, beside, np.inf).argmin())
        at_least = is_left & (last < least) & (least < first)
        most_beside -= float(seconds[at_least].sum())
        if not at_least.any() or most_beside < 0:
            return count == 0
        is_left &= ~at_least


def _over(last: Numbers, first: Numbers, values: Floats, length: int) -> Floats:
    """The sum at each place of a path of the values of ops that are beside it."""
    changes = np.zeros(length + 1)
    np.add.at(changes, last + 1, values)
    np.add.at(changes, first, -values)
    return np.cumsum(changes, dtype=float)[:length]


def _by_row(ops: StepOps) -> list[Sources]:
    """What each op waits for, without what waits for no row."""
    waits = ops.waits_for_rows
    return [[wait for wait in sources if waits[wait[0]] and waits[op]] for op, sources in enumerate(ops.sources)]
