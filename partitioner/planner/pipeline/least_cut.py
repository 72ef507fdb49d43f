"""Cut a row of items into stages such that the largest cost of a stage is least: dynamic programs over positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.op_places import Floats


def least_cut(tables: Sequence[Floats], last_of_first: Floats | float = 0.0) -> tuple[list[int] | None, float]:
    """The ends of stages with the least largest cost, and that cost; None and infinity where no cut has a finite one.

    Args:
        tables: For each stage, the costs `(n + 1, n + 1)`: entry i, j is for items i to j, j not included; infinite
            where the stage cannot have them. Of two equal cuts, the one with the shortest first stages is taken.
        last_of_first: What the first stage costs on top of the largest cost, by its end `(n + 1,)`.
    """
    count = len(tables[0]) - 1
    # From the last stage to the first: the least cost of all stages from a position on.
    best = np.full(count + 1, np.inf)
    best[count] = -np.inf
    ends_from: list[NDArray[np.intp]] = []
    for stage, table in reversed(list(enumerate(tables))):
        reached = np.maximum(table, best[None, :]) + (0.0 if stage else last_of_first)
        ends_from.append(reached.argmin(axis=1))
        best = reached[np.arange(count + 1), ends_from[-1]]
    if not np.isfinite(best[0]):
        return None, float("inf")
    ends = [0]
    for of_stage in reversed(ends_from):
        ends.append(int(of_stage[ends[-1]]))
    return ends[1:], float(best[0])


def end_ranges(tables: Sequence[Floats], most: float) -> tuple[tuple[int, int], ...]:
    """The first and the last position where each stage but the last ends in cuts of which no stage costs more.

    Args:
        tables: As above.
        most: What a stage may cost.

    Returns:
        Of each stage but the last; empty ranges, from a later position to an earlier one, where there is no such cut.
    """
    may_be = [table <= most for table in tables]
    start = np.arange(len(may_be[0])) == 0
    reached, left = [start], [start[::-1]]
    for of_stage in may_be[:-1]:
        reached.append((reached[-1][:, None] & of_stage).any(axis=0))
    for of_stage in reversed(may_be[1:]):
        left.append((of_stage & left[-1][None, :]).any(axis=1))
    ends = [np.flatnonzero(a & b) for a, b in zip(reached[1:], reversed(left[1:]), strict=True)]
    return tuple((int(at[0]), int(at[-1])) if len(at) else (len(start), 0) for at in ends)
