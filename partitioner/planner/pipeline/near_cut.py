"""Move ends of a cut, first single ones, then rows of them, as long as the longest path through its calls gets shorter.

The dynamic program of `split.py` looks at one stage at a time. What stages make each other wait is known of whole cuts.
"""

from __future__ import annotations

import math
from itertools import product

from partitioner.planner.pipeline.split import Cut, StageSplit

_STEPS = (-1, 1, -2, 2, -4, 4)
"""By how many items an end is moved: layers have a few."""
_MOST_CALLS = 300_000
"""In which longest paths are looked for: a few tenths of a second."""
_WORTH = 1e-3
"""The share of a step that a round of moves must gain for another one."""


def near_cut(split: StageSplit, cut: Cut) -> Cut:
    """The cut that such moves lead to; the same cut where it is not estimated to fit, or stages need not wait."""
    sequence = split.sequence
    if sequence.num_stages < 2 or sequence.crossed is None or not cut.fits:
        return cut
    left = _MOST_CALLS // sum(map(len, sequence.orders.values()))
    before = math.inf
    while left > 0 and cut.seconds < before * (1 - _WORTH):
        before = cut.seconds
        for (first, behind), step in product(_rows_of(sequence.num_stages - 1), _STEPS):
            moved = (end + step for end in cut.ends[first:behind])
            ends = [*cut.ends[:first], *moved, *cut.ends[behind:]]
            if left > 0 and (0, *ends)[first] < ends[first] and ends[behind - 1] < ends[behind]:
                cut, left = min(cut, split.cut(ends), key=lambda one: one.seconds), left - 1
    return cut


def _rows_of(count: int) -> list[tuple[int, int]]:
    """The first of some ends in a row, and the one behind them; short rows first.

    To move a row is to move items from the stage before it to the one behind it, or back.
    """
    return [(first, first + length) for length in range(1, count + 1) for first in range(count - length + 1)]
