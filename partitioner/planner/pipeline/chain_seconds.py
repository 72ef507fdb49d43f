"""What a device that holds a part of the items adds to the chain of a step, both ways, and what it has left to do.

Each stretch of the chain, from a milestone to the next, counts with one part: that of its middle item, by seconds. It
takes at the least the longest path through it, with the transfers into and out of the part, and the work that the part
has of it with the least path before and behind that. Milestones count with their own parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.planner.pipeline.boundary_seconds import BoundarySeconds, boundary_seconds
from partitioner.planner.pipeline.chain import Chain, Numbers
from partitioner.planner.pipeline.chain_stretches import Paths, Stretch, Stretches
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import between
from partitioner.planner.pipeline.step_ops import Part, StepOps, Waits


@dataclass(frozen=True, kw_only=True)
class PartSeconds:
    """`(n + 1, n + 1)` each: entry i, j is of the part of items i to j.

    Attributes:
        there: What it adds to the chain up to its turn.
        back: What it adds behind the turn.
        rest: What it has to do once the chain has come back to it, with the transfer of what it waits for.
    """

    there: Floats
    back: Floats
    rest: Floats


@dataclass(frozen=True, kw_only=True)
class ChainSeconds:
    """Seconds of parts.

    Attributes:
        stretches: Of the chain of the step.
    """

    stretches: Stretches

    @property
    def ops(self) -> StepOps:
        """The ops of the step."""
        return self.stretches.ops

    @property
    def chain(self) -> Chain:
        """Their chain."""
        return self.stretches.chain

    def of_all_parts(self) -> PartSeconds:
        """Those of every part: a stretch that both of its boundaries cut has the transfers over one of them."""
        there, back, _ = self._tables
        return PartSeconds(there=there.copy(), back=back.copy(), rest=self._rest)

    def of_boundaries(self) -> BoundarySeconds:
        """What two parts add at the boundary between them."""
        _, _, over_boundary = self._tables
        return boundary_seconds(
            self.stretches, over_boundary, self._first_needs[1:], self._rest, self._last_of_later_parts
        )

    @cached_property
    def _tables(self) -> tuple[Floats, Floats, Floats]:
        """What each part adds, there and back, and `(stretches, n + 1)`: stretches where one boundary cuts the step."""
        there, back = (between(_running(fixed)) for fixed in self._fixed)
        there[0] += self._first_needs.sum(axis=0)
        over_boundary = self.stretches.uncut_seconds[:, None].repeat(self.ops.num_items + 1, axis=1)
        for stretch in self.stretches.cut:
            middle, of_stretch = stretch.middle, self.stretches.boundary_paths.through[stretch.number]
            seconds = np.maximum(of_stretch[: middle + 1, None], of_stretch[None, middle + 1 :])
            if len(stretch.ops):
                heads, tails = _least_heads_and_tails(stretch, self.stretches.boundary_paths, self.ops.num_items)
                work = stretch.work[None, middle + 1 :] - stretch.work[: middle + 1, None]
                serial = heads[: middle + 1, None] + work + tails[None, middle + 1 :]
                np.maximum(seconds, np.where(work > 0, serial, 0.0), out=seconds)
            self._with_serial(seconds, stretch)
            over_boundary[stretch.number] = np.concatenate([seconds[:, -1], seconds[0]])
            (there if stretch.number < self.chain.turn else back)[: middle + 1, middle + 1 :] += seconds
        return there, back, over_boundary

    def _with_serial(self, seconds: Floats, stretch: Stretch) -> None:
        """Raise what a stretch adds to parts of which one boundary cuts it."""
        lowest, highest = (int(of_all[stretch.number]) for of_all in self.stretches.ranges)
        for boundary in self._near_boundaries.get(stretch.number, ()):
            serial, _ = self.stretches.serial_seconds(stretch, boundary)
            if boundary <= stretch.middle:
                own = seconds[boundary, highest - stretch.middle :]
            else:
                own = seconds[: lowest + 1, boundary - stretch.middle - 1]
            np.maximum(own, serial, out=own)

    @cached_property
    def _near_boundaries(self) -> Mapping[int, Sequence[int]]:
        """Those that cut each stretch, by its number."""
        boundaries: dict[int, list[int]] = {}
        for stretch, boundary in self.stretches.near_cuts:
            boundaries.setdefault(stretch.number, []).append(boundary)
        return boundaries

    def raised(self, seconds: PartSeconds, parts: Sequence[Part], waits: Waits) -> None:
        """Raise those of some parts, by all transfers into and out of them (`StepOps.waits`).

        Parts of two devices have one boundary, so that theirs are known.
        """
        if self.ops.has_one_channel:
            return
        paths, (starts, ends) = self.stretches.paths(waits, len(parts)), np.array(parts).T
        sums = [_running(fixed) for fixed in self._fixed]
        there, back = (of_items[ends] - of_items[starts] for of_items in sums)
        there += np.where(starts == 0, self._first_needs.sum(axis=0)[ends], 0.0)
        for stretch in self.stretches.cut:
            own = np.flatnonzero((starts <= stretch.middle) & (stretch.middle < ends))
            if not len(own):
                continue
            through = paths.through[stretch.number][own]
            if len(stretch.ops):
                first, behind = starts[own], ends[own]
                is_inside = (stretch.places[:, None] >= first) & (stretch.places[:, None] < behind)
                work = stretch.work[behind] - stretch.work[first]
                heads, tails = (
                    np.where(is_inside, of_ops[np.ix_(stretch.ops, own)], np.inf).min(axis=0)
                    for of_ops in (paths.heads, paths.tails)
                )
                through = np.maximum(through, np.where(work > 0, heads + work + tails, 0.0))
            (there if stretch.number < self.chain.turn else back)[own] += through
        for table, values in ((seconds.there, there), (seconds.back, back)):
            table[starts, ends] = np.maximum(table[starts, ends], values)

    @cached_property
    def _fixed(self) -> tuple[Floats, Floats]:
        """Seconds of the chain at each place that are the same wherever parts begin and end: there, and back."""
        chain, ops = self.chain, self.ops
        lowest, highest = self.stretches.ranges
        within = np.flatnonzero(chain.is_between & np.append(lowest == highest, False)[chain.behind])
        counted = np.concatenate([chain.milestones, within])
        is_back = chain.behind[counted] >= chain.turn
        is_back[: chain.turn + 1] = False
        fixed = np.zeros((2, ops.num_items))
        np.add.at(fixed, (is_back.astype(int), ops.place[counted]), ops.seconds[counted])
        return fixed[0], fixed[1]

    @cached_property
    def _first_needs(self) -> Floats:
        """`(milestones, n + 1)`: what the first device does for each milestone, and for none before, that needs no row.

        It has the first items, and nothing to do before it begins; only milestones count before which all is its own.
        """
        chain, ops, count = self.chain, self.ops, self.ops.num_items
        never, number = len(chain.milestones), chain.behind + 1
        number[chain.milestones] -= 1
        on_chain = chain.is_between.copy()
        on_chain[chain.milestones] = True
        needed = np.where(on_chain, number, never)
        for target in reversed(range(len(ops.sources))):
            for source, _ in ops.sources[target]:
                if not ops.waits_for_rows[source]:
                    needed[source] = min(needed[source], needed[target])
        seconds = np.zeros((never, count + 1))
        counted = ~ops.waits_for_rows & (ops.seconds > 0) & (needed <= chain.turn)
        np.add.at(seconds, (needed[counted], ops.place[counted] + 1), ops.seconds[counted])
        seconds = seconds.cumsum(axis=1)
        highest = np.maximum.accumulate(np.insert(self.stretches.ranges[1], 0, ops.place[chain.milestones[0]]))
        return np.where(highest[:, None] < np.arange(count + 1), seconds, 0.0)

    @cached_property
    def _rest(self) -> Floats:
        """What each part has left to do behind all of the chain that counts with later parts."""
        return np.stack([self.stretches.left(number, end) for end, number in enumerate(self._last_of_later_parts)], 1)

    @cached_property
    def _last_of_later_parts(self) -> Numbers:
        """`(n + 1,)`: the number of the last milestone until which stretches and milestones count with later items."""
        chain = self.chain
        last = np.full(self.ops.num_items + 1, chain.turn)
        np.maximum.at(last, self.stretches.middles, np.arange(1, len(chain.milestones)))
        np.maximum.at(last, self.ops.place[chain.milestones], np.arange(len(chain.milestones)))
        return np.maximum.accumulate(last[::-1])[::-1]


def _least_heads_and_tails(stretch: Stretch, paths: Paths, count: int) -> tuple[Floats, Floats]:
    """`(n + 1,)`: the least head of what is behind a boundary, and the least tail of what is before it."""
    boundaries = np.arange(count + 1)
    is_behind = stretch.places[:, None] >= boundaries
    heads = np.where(is_behind, paths.heads[stretch.ops], np.inf).min(axis=0)
    tails = np.where(is_behind, np.inf, paths.tails[stretch.ops]).min(axis=0)
    return heads, tails


def _running(values: Floats) -> Floats:
    return np.insert(np.cumsum(values), 0, 0.0)
