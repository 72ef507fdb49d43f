"""Cut a row of items into stages such that the largest cost of a stage is least: dynamic programs over positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.planner.pipeline.op_places import Floats, Indices


@dataclass(frozen=True, eq=False)
class Places:
    """Where a stage may be.

    Attributes:
        starts: Position of its first item, `(m, 1)`, one behind the other.
        ends: Position behind its last item, `(m, k)`; an empty stage ends where it starts.
    """

    starts: Indices
    ends: Indices


def least_cut(
    tables: Sequence[Floats], places: Sequence[Places], last_of_first: Floats
) -> tuple[list[int] | None, float]:
    """The ends of stages with the least largest cost, and that cost; None and infinity where no cut has a finite one.

    Args:
        tables: For each stage, its costs in each of its places, `(m, k)`; infinite where it cannot be. Of two equal
            cuts, the one with the shortest first stages is taken.
        places: Of each stage.
        last_of_first: What the first stage costs on top of the largest cost, by its end `(n + 1,)`.
    """
    positions = np.arange(len(last_of_first))
    # From the last stage to the first: the least cost of all stages from a position on.
    best = np.where(positions == positions[-1], -np.inf, np.inf)
    ends_from: list[Indices] = []
    for stage, table in reversed(list(enumerate(tables))):
        starts, ends = places[stage].starts[:, 0], places[stage].ends
        reached = np.maximum(table, best[ends]) + (0.0 if stage else last_of_first[ends])
        chosen = reached.argmin(axis=1)[:, None]
        best, end = np.full(len(positions), np.inf), np.full(len(positions), -1)
        best[starts] = np.take_along_axis(reached, chosen, axis=1)[:, 0]
        end[starts] = np.take_along_axis(ends, chosen, axis=1)[:, 0]
        ends_from.append(end)
    if not np.isfinite(best[0]):
        return None, float("inf")
    found = [0]
    for of_stage in reversed(ends_from):
        found.append(int(of_stage[found[-1]]))
    return found[1:], float(best[0])


def end_ranges(
    tables: Sequence[Floats], places: Sequence[Places], most: float, num_items: int
) -> tuple[tuple[int, int], ...]:
    """The first and the last position where each stage but the last ends in cuts of which no stage costs more.

    Args:
        tables: As above.
        places: As above.
        most: What a stage may cost.
        num_items: n.

    Returns:
        Of each stage but the last; empty ranges, from a later position to an earlier one, where there is no such cut.
    """
    may_be = [(of_stage, table <= most) for of_stage, table in zip(places, tables, strict=True)]
    start = np.arange(num_items + 1) == 0
    reached, left = [start], [start[::-1]]
    for at, is_possible in may_be[:-1]:
        reached.append(np.zeros_like(start))
        reached[-1][at.ends[reached[-2][at.starts] & is_possible]] = True
    for at, is_possible in reversed(may_be[1:]):
        left.append(np.zeros_like(start))
        left[-1][at.starts[:, 0]] = (is_possible & left[-2][at.ends]).any(axis=1)
    where = [np.flatnonzero(a & b) for a, b in zip(reached[1:], reversed(left[1:]), strict=True)]
    return tuple((int(at[0]), int(at[-1])) if len(at) else (len(start), 0) for at in where)
