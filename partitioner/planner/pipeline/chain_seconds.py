"""What a device that holds a part of the items adds to the chain of a step, both ways, and what it has left to do.

Each stretch of the chain, from a milestone to the next, counts with one part: that of its middle item, by seconds. It
takes at the least the longest path through it, with the transfers into and out of the part, and the work that the part
has of it with the least path before and behind that. Milestones count with their own parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.planner.pipeline.chain import Chain, Numbers
from partitioner.planner.pipeline.channel_delays import channel_delays
from partitioner.planner.pipeline.channel_tensors import ChannelTensors
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
class _Stretch:
    """From a milestone to the next, where they and what is between them are not all of one item.

    Attributes:
        number: Of its first milestone.
        ops: What is between, by index.
        places: Of these.
        work: `(n + 1,)`: of the ops of the first items, in seconds.
        middle: The place of the item with which it counts.
    """

    number: int
    ops: Numbers
    places: Numbers
    work: Floats
    middle: int


@dataclass(frozen=True, kw_only=True)
class ChainSeconds:
    """Seconds of parts.

    Attributes:
        ops: The ops of the step.
        chain: Their chain.
    """

    ops: StepOps
    chain: Chain

    def of_all_parts(self) -> PartSeconds:
        """Those of every part: a stretch that both of its boundaries cut has the transfers over one of them."""
        count = self.ops.num_items
        waits = self.ops.waits([(0, end) for end in range(count + 1)])
        paths = _paths(self.ops, self.chain, waits, count + 1)
        there, back = (between(_running(fixed)) for fixed in self._fixed)
        over_boundary = self._uncut_stretches[:, None].repeat(count + 1, axis=1)
        for stretch in self._stretches:
            middle, of_stretch = stretch.middle, paths.through[stretch.number]
            seconds = np.maximum(of_stretch[: middle + 1, None], of_stretch[None, middle + 1 :])
            if len(stretch.ops):
                heads, tails = _least_heads_and_tails(stretch, paths, count)
                work = stretch.work[None, middle + 1 :] - stretch.work[: middle + 1, None]
                serial = heads[: middle + 1, None] + work + tails[None, middle + 1 :]
                np.maximum(seconds, np.where(work > 0, serial, 0.0), out=seconds)
            over_boundary[stretch.number] = np.concatenate([seconds[:, -1], seconds[0]])
            (there if stretch.number < self.chain.turn else back)[: middle + 1, middle + 1 :] += seconds
        if self.ops.has_one_channel:
            tensors = ChannelTensors(ops=self.ops, chain=self.chain, waits=waits, heads=paths.heads, tails=paths.tails)
            milestones = self.ops.seconds[self.chain.milestones]
            delays = channel_delays(tensors.by_turn(), milestones, over_boundary)
            for stretch in self._stretches:
                middle, table = stretch.middle, there if stretch.number < self.chain.turn else back
                table[: middle + 1, -1] += delays[stretch.number, : middle + 1]
                table[0, middle + 1 :] += delays[stretch.number, middle + 1 :]
        return PartSeconds(there=there, back=back, rest=self._rest(paths))

    def raised(self, seconds: PartSeconds, parts: Sequence[Part], waits: Waits) -> None:
        """Raise those of some parts, by all transfers into and out of them (`StepOps.waits`).

        Parts of two devices have one boundary, so that theirs are known.
        """
        if self.ops.has_one_channel:
            return
        paths, (starts, ends) = _paths(self.ops, self.chain, waits, len(parts)), np.array(parts).T
        sums = [_running(fixed) for fixed in self._fixed]
        there, back = (of_items[ends] - of_items[starts] for of_items in sums)
        for stretch in self._stretches:
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
        lowest, highest = self._ranges
        within = np.flatnonzero(chain.is_between & np.append(lowest == highest, False)[chain.behind])
        counted = np.concatenate([chain.milestones, within])
        is_back = chain.behind[counted] >= chain.turn
        is_back[: chain.turn + 1] = False
        fixed = np.zeros((2, ops.num_items))
        np.add.at(fixed, (is_back.astype(int), ops.place[counted]), ops.seconds[counted])
        return fixed[0], fixed[1]

    @property
    def _uncut_stretches(self) -> Floats:
        """Seconds of stretches whose ops are all on one device, without milestones."""
        chain, count = self.chain, max(0, len(self.chain.milestones) - 1)
        within = chain.is_between & (chain.behind < count)
        return np.bincount(chain.behind[within], self.ops.seconds[within], minlength=count).astype(float)

    @cached_property
    def _stretches(self) -> list[_Stretch]:
        """Those that boundaries may cut."""
        chain, ops = self.chain, self.ops
        lowest, highest = self._ranges
        order = np.flatnonzero(chain.is_between)
        order = order[np.argsort(chain.behind[order], kind="stable")]
        of_stretches = np.split(order, np.searchsorted(chain.behind[order], np.arange(1, len(chain.milestones))))
        made = []
        for number in np.flatnonzero(lowest < highest).tolist():
            is_own = np.zeros(len(ops.seconds), dtype=bool)
            is_own[of_stretches[number]] = True
            work = ops.work(is_own)
            middle = int(np.searchsorted(work, work[-1] / 2)) - 1 if work[-1] else ops.place[chain.milestones[number]]
            made.append(
                _Stretch(
                    number=number,
                    ops=of_stretches[number],
                    places=ops.place[of_stretches[number]],
                    work=work,
                    middle=int(middle),
                )
            )
        return made

    @cached_property
    def _ranges(self) -> tuple[Numbers, Numbers]:
        """The lowest and the highest place of each stretch, from one milestone to the next."""
        chain, place = self.chain, self.ops.place
        ends = place[chain.milestones]
        lowest, highest = (either(ends[:-1], ends[1:]) for either in (np.minimum, np.maximum))
        np.minimum.at(lowest, chain.behind[chain.is_between], place[chain.is_between])
        np.maximum.at(highest, chain.behind[chain.is_between], place[chain.is_between])
        return lowest, highest

    def _rest(self, paths: _Paths) -> Floats:
        """What each part has left to do behind all of the chain that counts with later parts."""
        chain, ops, count = self.chain, self.ops, self.ops.num_items
        rest = np.zeros((count + 1, count + 1))
        for end, number in enumerate(self._last_of_later_parts()):
            chosen = ops.is_counted & (chain.behind >= number)
            chosen[chain.milestones[number]] = False
            work = ops.work(chosen)
            first = chosen & (chain.behind == number) & (ops.place < end)
            hops = [*paths.heads[first, end], *paths.through[number : number + 1, end]]
            rest[:, end] = np.where(work[end] > work, work[end] - work + min(hops, default=0.0), 0.0)
        return rest

    def _last_of_later_parts(self) -> Numbers:
        """`(n + 1,)`: the number of the last milestone until which stretches and milestones count with later items."""
        chain, (lowest, _) = self.chain, self._ranges
        middles = lowest.copy()
        for stretch in self._stretches:
            middles[stretch.number] = stretch.middle
        last = np.full(self.ops.num_items + 1, chain.turn)
        np.maximum.at(last, middles, np.arange(1, len(chain.milestones)))
        np.maximum.at(last, self.ops.place[chain.milestones], np.arange(len(chain.milestones)))
        return np.maximum.accumulate(last[::-1])[::-1]


@dataclass(frozen=True, kw_only=True)
class _Paths:
    """The longest paths within stretches, if one of some parts is apart; each has a column.

    Attributes:
        heads: `(ops, parts)`: from the milestone that an op is behind to it.
        tails: `(ops, parts)`: from an op, without itself, to the next milestone.
        through: `(stretches, parts)`: from milestone to milestone.
    """

    heads: Floats
    tails: Floats
    through: Floats


def _paths(ops: StepOps, chain: Chain, waits: Waits, num_parts: int) -> _Paths:
    seconds = ops.seconds.copy()
    seconds[chain.milestones] = 0.0
    is_milestone = np.zeros(len(seconds), dtype=bool)
    is_milestone[chain.milestones] = True
    heads, tails = np.zeros((2, len(seconds), num_parts))
    through = np.zeros((max(0, len(chain.milestones) - 1), num_parts))
    starts = chain.behind - is_milestone
    within = [
        (target, source, transfer) for target, source, transfer in waits if 0 <= chain.behind[source] == starts[target]
    ]
    for target, source, transfer in within:
        reached = through[starts[target]] if is_milestone[target] else heads[target]
        np.maximum(reached, heads[source] + (seconds[source] + transfer), out=reached)
    for target, source, transfer in reversed(within):
        if chain.is_between[source] and (chain.is_between[target] or is_milestone[target]):
            np.maximum(tails[source], tails[target] + (seconds[target] + transfer), out=tails[source])
    return _Paths(heads=heads, tails=tails, through=through)


def _least_heads_and_tails(stretch: _Stretch, paths: _Paths, count: int) -> tuple[Floats, Floats]:
    """`(n + 1,)`: the least head of what is behind a boundary, and the least tail of what is before it."""
    boundaries = np.arange(count + 1)
    is_behind = stretch.places[:, None] >= boundaries
    heads = np.where(is_behind, paths.heads[stretch.ops], np.inf).min(axis=0)
    tails = np.where(is_behind, np.inf, paths.tails[stretch.ops]).min(axis=0)
    return heads, tails


def _running(values: Floats) -> Floats:
    return np.insert(np.cumsum(values), 0, 0.0)
