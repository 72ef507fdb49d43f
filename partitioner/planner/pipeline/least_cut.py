"""Cut a row of items into stages such that the largest cost of a stage is least: a dynamic program over positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.item_order import Floats


def least_cut(tables: Sequence[Floats]) -> tuple[list[int] | None, float]:
    """The ends of stages with the least largest cost, and that cost; None and infinity where no cut has a finite one.

    Args:
        tables: For each stage, the costs `(n + 1, n + 1)`: entry i, j is for items i to j, j not included; infinite
            where the stage cannot have them. Of two equal cuts, the one with the shortest first stages is taken.
    """
    count = len(tables[0]) - 1
    best = np.full(count + 1, np.inf)
    best[0] = -np.inf
    starts: list[NDArray[np.intp]] = []
    for table in tables:
        reached = np.maximum(best[:, None], table)
        starts.append(reached.argmin(axis=0))
        best = reached[starts[-1], np.arange(count + 1)]
    if not np.isfinite(best[count]):
        return None, float("inf")
    ends = [count]
    for start in reversed(starts[1:]):
        ends.append(int(start[ends[-1]]))
    return ends[::-1], float(best[count])
