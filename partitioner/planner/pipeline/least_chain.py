"""Cut a row of items into parts such that the chain of the step comes back and all work ends in the least time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.chain_seconds import PartSeconds
from partitioner.planner.pipeline.op_places import Floats

# A bound is no farther below the least time than this share of it.
_PRECISION = 1e-7


@dataclass(frozen=True, kw_only=True)
class LeastChain:
    """Bounds of all cuts, from what each part adds to the chain, and what no step with the part is shorter than.

    The work that a part has left begins once the chain has reached the part, gone through those behind it and come
    back. So a cut into parts p takes, for each p at the least,

        there of the parts before p, and of p + chain through the parts behind p + rest of p

    and the whole chain. For a time that is asked about, a dynamic program from the last part to the first has the
    shortest chain through the parts behind a position of which none takes longer; what the parts before take is the
    least there is, whatever the cut.

    Attributes:
        seconds: Of parts.
        least: `(n + 1, n + 1)`: no step with a part is shorter.
    """

    seconds: PartSeconds
    least: Floats

    def bound(self, num_parts: int, most_seconds: float, least_seconds: float = 0.0) -> tuple[float, list[int] | None]:
        """No cut into so many parts takes less; and the ends of the parts of one that is not refuted in hardly more.

        Args:
            num_parts: Parts.
            most_seconds: A larger bound is of no interest; where all cuts take longer, there are no ends.
            least_seconds: Cuts that take less are known not to be.
        """
        there = self._least_there(num_parts)
        refuted, ends = least_seconds, self._cut(there, most_seconds)
        if ends is None:
            return most_seconds, None
        possible = self._seconds(there, ends)
        # Mostly a cut that was found is the best, or far from it: whether it is, and halves, are asked for in turns.
        asks_for_better = True
        while possible - refuted > _PRECISION * possible:
            asked = (1 - _PRECISION) * possible if asks_for_better else (refuted + possible) / 2
            if (cut := self._cut(there, asked)) is None:
                refuted = asked
            else:
                possible, ends = min(possible, self._seconds(there, cut)), cut
            asks_for_better = not asks_for_better
        return refuted, ends

    def _least_there(self, num_parts: int) -> Floats:
        """`(parts, n + 1)`: the least seconds of the chain up to its turn, through so many parts up to a position."""
        seconds = np.where(np.tri(len(self.least), dtype=bool), np.inf, self.seconds.there)
        there = np.full((num_parts, len(self.least)), np.inf)
        there[0, 0] = 0.0
        for number in range(1, num_parts):
            there[number] = (there[number - 1][:, None] + seconds).min(axis=0)
        return there

    def _seconds(self, there: Floats, ends: Sequence[int]) -> float:
        """What the cut takes at the least."""
        seconds, most, chain = self.seconds, 0.0, 0.0
        for number, part in reversed([*enumerate(pairwise([0, *ends]))]):
            behind = float(seconds.there[part]) + chain
            whole = float(there[number, part[0]]) + behind + float(seconds.rest[part])
            most = max(most, whole, float(self.least[part]))
            chain = behind + float(seconds.back[part])
        return max(most, chain)

    def _cut(self, there: Floats, most: float) -> list[int] | None:
        """The ends of parts of which none certainly takes longer; None where there is no such cut."""
        seconds = self.seconds
        may_be = np.where(np.tri(len(self.least), dtype=bool), np.inf, self.least) <= most
        most_around = np.where(may_be, most - seconds.there - seconds.rest, -np.inf)
        both_ways = seconds.there + seconds.back
        chain = np.full(len(self.least), np.inf)
        chain[-1] = 0.0
        ends_from: list[NDArray[np.intp]] = []
        for before in there[::-1]:
            whole = np.where(before[:, None] + chain <= most_around, both_ways + chain, np.inf)
            ends_from.append(whole.argmin(axis=1))
            chain = np.take_along_axis(whole, ends_from[-1][:, None], axis=1)[:, 0]
        return _followed(ends_from[::-1]) if chain[0] <= most else None


def _followed(ends_from: Sequence[NDArray[np.intp]]) -> list[int]:
    """The ends of parts, of which each says where it ends if it begins at a position."""
    ends = [0]
    for of_part in ends_from:
        ends.append(int(of_part[ends[-1]]))
    return ends[1:]
