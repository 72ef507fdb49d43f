"""Cut a row of items into stages such that the largest cost of a stage is least: dynamic programs over positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.planner.pipeline.op_places import Floats, Indices


def least_cut(tables: Sequence[Floats], ends: Indices, last_of_first: Floats) -> tuple[list[int] | None, float]:
    """The ends of stages with the least largest cost, and that cost; None and infinity where no cut has a finite one.

    Args:
        tables: For each stage, the costs `(n + 1, m)`: entry i, k is of items i to `ends[i, k]`, not included; infinite
            where the stage cannot have them. Of two equal cuts, the one with the shortest first stages is taken.
        ends: Of all stages alike.
        last_of_first: What the first stage costs on top of the largest cost, by its end `(n + 1,)`.
    """
    starts = np.arange(len(ends))
    # From the last stage to the first: the least cost of all stages from a position on.
    best = np.where(starts == starts[-1], -np.inf, np.inf)
    ends_from: list[Indices] = []
    for stage, table in reversed(list(enumerate(tables))):
        reached = np.maximum(table, best[ends]) + (0.0 if stage else last_of_first[ends])
        chosen = reached.argmin(axis=1)
        best = reached[starts, chosen]
        ends_from.append(ends[starts, chosen])
    if not np.isfinite(best[0]):
        return None, float("inf")
    found = [0]
    for of_stage in reversed(ends_from):
        found.append(int(of_stage[found[-1]]))
    return found[1:], float(best[0])


def end_ranges(tables: Sequence[Floats], ends: Indices, most: float) -> tuple[tuple[int, int], ...]:
    """The first and the last position where each stage but the last ends in cuts of which no stage costs more.

    Args:
        tables: As above.
        ends: As above.
        most: What a stage may cost.

    Returns:
        Of each stage but the last; empty ranges, from a later position to an earlier one, where there is no such cut.
    """
    may_be = [table <= most for table in tables]
    start = np.arange(len(ends)) == 0
    reached, left = [start], [start[::-1]]
    for of_stage in may_be[:-1]:
        reached.append(np.zeros_like(start))
        reached[-1][ends[reached[-2][:, None] & of_stage]] = True
    for of_stage in reversed(may_be[1:]):
        left.append((of_stage & left[-1][ends]).any(axis=1))
    where = [np.flatnonzero(a & b) for a, b in zip(reached[1:], reversed(left[1:]), strict=True)]
    return tuple((int(at[0]), int(at[-1])) if len(at) else (len(start), 0) for at in where)
