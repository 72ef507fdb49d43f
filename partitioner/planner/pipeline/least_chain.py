"""Cut a row of items into parts such that the chain of the step comes back and all work ends in the least time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.boundary_seconds import BoundarySeconds
from partitioner.planner.pipeline.chain_seconds import PartSeconds
from partitioner.planner.pipeline.op_places import Floats

# A bound is no farther below the least time than this share of it.
_PRECISION = 1e-7

_There = list[Floats]
"""For each part of a cut, `(2, n + 1)`: the least seconds in which the chain reaches a position, by whether the part
before it has all that the boundary there reaches."""


@dataclass(frozen=True, kw_only=True)
class LeastChain:
    """Bounds of all cuts, from what each part adds to the chain, and what no step with the part is shorter than.

    The work that a part has left begins once the chain has reached the part, gone through those behind it and come
    back. So a cut into parts p takes, for each p at the least,

        there of the parts before p, and of p + chain through the parts behind p + rest of p

    and the whole chain, with what is added at boundaries whose two parts hold all that counts there. For a time that is
    asked about, a dynamic program from the last part to the first has the shortest chain through the parts behind a
    position of which none takes longer; what the parts before take is the least there is, of parts that may be in such
    a cut. Both know whether the part next to the position holds what counts on its side.

    Attributes:
        seconds: Of parts.
        beside: Of boundaries.
        least: `(n + 1, n + 1)`: no step with a part is shorter.
    """

    seconds: PartSeconds
    beside: BoundarySeconds
    least: Floats

    def bound(
        self, num_parts: int, most_seconds: float, least_seconds: float = 0.0, *, rounds: int = 0
    ) -> tuple[float, list[int] | None]:
        """No cut into so many parts takes less; and the ends of the parts of one that is not refuted in hardly more.

        Args:
            num_parts: Parts.
            most_seconds: A larger bound is of no interest; where all cuts take longer, there are no ends.
            least_seconds: Cuts that take less are known not to be.
            rounds: How often, for each time that is asked about, what comes before parts is looked at again.
        """
        tables = _Tables.of(self)
        there = tables.least_there([_MayBe.any_of(tables.least)] * num_parts)
        refuted, found = least_seconds, tables.refined(there, most_seconds, rounds)
        if found is None:
            return most_seconds, None
        there, ends = found
        possible = tables.step_seconds(there, ends)
        # Mostly a cut that was found is the best, or far from it: whether it is, and halves, are asked for in turns.
        asks_for_better = True
        while possible - refuted > _PRECISION * possible:
            asked = (1 - _PRECISION) * possible if asks_for_better else (refuted + possible) / 2
            if (found := tables.refined(there, asked, rounds)) is None:
                refuted = asked
            else:
                there, ends = found
                possible = min(possible, tables.step_seconds(there, ends))
            asks_for_better = not asks_for_better
        return refuted, ends


class _MayBe(NamedTuple):
    """The parts with a start and an end in some range that may be one of a cut."""

    own: tuple[slice, slice]
    may_be: NDArray[np.bool_]

    @classmethod
    def any_of(cls, least: Floats) -> _MayBe:
        """All parts."""
        return cls((slice(None), slice(None)), np.isfinite(least))


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """What the dynamic programs add up: `(n + 1, n + 1)` each, of parts by start and end.

    Some come in pairs: the second counts where the part behind holds all that the boundary between them reaches.

    Attributes:
        there: As in `PartSeconds`.
        least: As in `LeastChain`; infinite for no part.
        begun: What is added before the part where that of its start is met.
        until: From when the chain reaches the part until its work is done, without the chain through those behind it.
        through: What the part adds to the chain, both ways.
        is_met: Whether the boundary's part before its end, and that behind its start, hold all.
    """

    there: Floats
    least: Floats
    begun: Floats
    until: tuple[Floats, Floats]
    through: tuple[Floats, Floats]
    is_met: tuple[NDArray[np.bool_], NDArray[np.bool_]]

    @classmethod
    def of(cls, chain: LeastChain) -> _Tables:
        seconds, beside = chain.seconds, chain.beside
        is_met, until, both_ways = beside.is_met_before, seconds.there + seconds.rest, seconds.there + seconds.back
        added = beside.there + beside.back
        return cls(
            there=seconds.there,
            least=np.where(np.tri(len(chain.least), dtype=bool), np.inf, chain.least),
            begun=np.where(beside.is_met_behind, beside.there[:, None], 0.0),
            until=(until, np.where(is_met, seconds.there + beside.rest + added, until)),
            through=(both_ways, np.where(is_met, both_ways + added + beside.late, both_ways)),
            is_met=(is_met, beside.is_met_behind),
        )

    def refined(self, there: _There, most: float, rounds: int) -> tuple[_There, list[int]] | None:
        """The ends of parts of which none certainly takes longer, and what comes before them in such cuts at the least.

        None where there is no such cut.
        """
        found = self._cut(there, most)
        for _ in range(rounds):
            if found is not None:
                there = self.least_there(found[1])
                found = self._cut(there, most)
        return None if found is None else (there, found[0])

    def least_there(self, may_be: Sequence[_MayBe]) -> _There:
        """The least seconds in which the chain reaches each position through parts that may be."""
        there = np.full((2, len(self.least)), np.inf)
        there[0, 0] = 0.0
        made = [there]
        for own, may in may_be[:-1]:
            until = np.where(may, self._begun(there, own) + self.there[own], np.inf)
            is_met = self.is_met[0][own]
            there = np.full((2, len(self.least)), np.inf)
            there[0, own[1]] = np.where(is_met, np.inf, until).min(axis=0)
            there[1, own[1]] = np.where(is_met, until, np.inf).min(axis=0)
            made.append(there)
        return made

    def _begun(self, there: Floats, own: tuple[slice, slice]) -> Floats:
        """When the chain reaches some parts at the least."""
        apart, met = there[:, own[0], None]
        return np.minimum(apart, met + self.begun[own])

    def step_seconds(self, there: _There, ends: Sequence[int]) -> float:
        """What the cut takes at the least."""
        most, chain, is_met = 0.0, 0.0, True
        for before, part in zip(reversed(there), reversed([*pairwise([0, *ends])]), strict=True):
            begun = min(before[0, part[0]], before[1, part[0]] + self.begun[part])
            most = max(most, float(begun + chain + self.until[is_met][part]), float(self.least[part]))
            chain += float(self.through[is_met][part])
            is_met = bool(self.is_met[1][part])
        return max(most, chain)

    def _cut(self, there: _There, most: float) -> tuple[list[int], list[_MayBe]] | None:
        """The ends of parts of which none certainly takes longer, and all such parts; None for no such cut."""
        is_short = self.least <= most
        # The chain behind a position, by whether the first part there has all that the boundary before it reaches.
        chain = np.full((2, len(self.least)), np.inf)
        chain[:, -1] = 0.0
        may_be, choices = list[_MayBe](), list[tuple[NDArray[np.intp], NDArray[np.bool_]]]()
        for before in reversed(there):
            own = starts, ends = _range_of(before), _range_of(chain)
            if starts.start == starts.stop:
                return None
            left = np.where(is_short[own], most - self._begun(before, own), -np.inf)
            apart, met = (
                np.where(behind[ends] + until[own] <= left, behind[ends] + through[own], np.inf)
                for behind, until, through in zip(chain, self.until, self.through, strict=True)
            )
            whole, is_met = np.minimum(apart, met), self.is_met[1][own]
            chain, ends_from = np.full_like(chain, np.inf), np.zeros(chain.shape, dtype=np.intp)
            for way, own_way in enumerate((np.where(is_met, np.inf, whole), np.where(is_met, whole, np.inf))):
                chosen = own_way.argmin(axis=1)
                ends_from[way, starts] = chosen + ends.start
                chain[way, starts] = np.take_along_axis(own_way, chosen[:, None], axis=1)[:, 0]
            if not np.isfinite(chain.min()):
                return None
            is_met_by = np.zeros(self.least.shape, dtype=bool)
            is_met_by[own] = met < apart
            choices.append((ends_from, is_met_by))
            may_be.append(_MayBe(own, np.isfinite(whole)))
        if chain[:, 0].min() > most:
            return None
        return _followed(choices[::-1], int(chain[1, 0] < chain[0, 0])), may_be[::-1]


def _range_of(known: Floats) -> slice:
    """The positions that are reached at all, and those between them."""
    places = np.flatnonzero(np.isfinite(known.min(axis=0)))
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _followed(choices: Sequence[tuple[NDArray[np.intp], NDArray[np.bool_]]], way: int) -> list[int]:
    """The ends of parts: where each ends if it begins at a position, and which way those behind it go on."""
    ends = [0]
    for ends_from, is_met in choices:
        start = ends[-1]
        ends.append(int(ends_from[way, start]))
        way = int(is_met[start, ends[-1]])
    return ends[1:]
