"""The stretches of the chain of a step, each from a milestone to the next, and the longest paths through them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.planner.pipeline.chain import Chain, Numbers
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.part_bounds import one_machine_seconds
from partitioner.planner.pipeline.step_ops import StepOps, Waits

# A boundary reaches so many items on either side, where there are more than two devices.
_REACH = 24


@dataclass(frozen=True, kw_only=True)
class Stretch:
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
class Stretches:
    """All stretches of a chain.

    Attributes:
        ops: The ops of the step.
        chain: Their chain.
    """

    ops: StepOps
    chain: Chain

    @cached_property
    def cut(self) -> list[Stretch]:
        """Those that boundaries may cut."""
        chain, ops = self.chain, self.ops
        lowest, highest = self.ranges
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
                Stretch(
                    number=number,
                    ops=of_stretches[number],
                    places=ops.place[of_stretches[number]],
                    work=work,
                    middle=int(middle),
                )
            )
        return made

    @cached_property
    def ranges(self) -> tuple[Numbers, Numbers]:
        """The lowest and the highest place of each stretch, milestones included."""
        chain, place = self.chain, self.ops.place
        ends = place[chain.milestones]
        lowest, highest = (either(ends[:-1], ends[1:]) for either in (np.minimum, np.maximum))
        np.minimum.at(lowest, chain.behind[chain.is_between], place[chain.is_between])
        np.maximum.at(highest, chain.behind[chain.is_between], place[chain.is_between])
        return lowest, highest

    @cached_property
    def middles(self) -> Numbers:
        """The place of the item with which each stretch counts."""
        middles = self.ranges[0].copy()
        for stretch in self.cut:
            middles[stretch.number] = stretch.middle
        return middles

    @property
    def uncut_seconds(self) -> Floats:
        """Of stretches whose ops are all on one device, without milestones."""
        chain, count = self.chain, max(0, len(self.chain.milestones) - 1)
        within = chain.is_between & (chain.behind < count)
        return np.bincount(chain.behind[within], self.ops.seconds[within], minlength=count).astype(float)

    def left(self, number: int, end: int) -> Floats:
        """`(n + 1,)`: what parts that begin at each item and end there have left to do behind a milestone.

        Of their work that follows from it, the first op waits for the least path from the milestone to any of them.
        """
        ops, chain, paths = self.ops, self.chain, self.boundary_paths
        chosen = ops.is_counted & (chain.behind >= number)
        chosen[chain.milestones[number]] = False
        work, first = ops.work(chosen), chosen & (chain.behind == number) & (ops.place < end)
        hops = [*paths.heads[first, end], *paths.through[number : number + 1, end]]
        return np.where(work[end] > work, work[end] - work + min(hops, default=0.0), 0.0)

    @property
    def reach(self) -> int:
        """How many items on either side of a boundary count as near it: all, if there are two devices."""
        return self.ops.num_items if self.ops.has_one_channel else _REACH

    @cached_property
    def near_cuts(self) -> list[tuple[Stretch, int]]:
        """Stretches with the boundaries that cut them nearby."""
        made, (lowest, highest) = list[tuple[Stretch, int]](), self.ranges
        for stretch in self.cut:
            low, high = int(lowest[stretch.number]), int(highest[stretch.number])
            boundaries = range(max(low + 1, high + 1 - self.reach), min(high, low + self.reach) + 1)
            made += [(stretch, boundary) for boundary in boundaries]
        return made

    def serial_seconds(self, stretch: Stretch, boundary: int) -> tuple[float, float]:
        """What devices take for their ops of a stretch, with paths from its first milestone and to the next one.

        First that with the item with which the stretch counts, then the other one.
        """
        key = stretch.number, boundary
        if key not in self._serial_seconds:
            paths, is_before = self.boundary_paths, stretch.places < boundary
            counts_before = stretch.middle < boundary
            sides = (stretch.ops[is_before == counts_before], stretch.ops[is_before != counts_before])
            counted, other = (
                one_machine_seconds(paths.heads[own, boundary], self.ops.seconds[own], paths.tails[own, boundary])
                for own in sides
            )
            self._serial_seconds[key] = counted, other
        return self._serial_seconds[key]

    @cached_property
    def _serial_seconds(self) -> dict[tuple[int, int], tuple[float, float]]:
        return {}

    @cached_property
    def boundary_waits(self) -> Waits:
        """What ops wait for; entry k of an array is of the boundary between the first k items and the others."""
        return self.ops.waits([(0, end) for end in range(self.ops.num_items + 1)])

    @cached_property
    def boundary_paths(self) -> Paths:
        """The paths where the step is cut at a boundary: a column for each."""
        return self.paths(self.boundary_waits, self.ops.num_items + 1)

    def paths(self, waits: Waits, num_parts: int) -> Paths:
        """The paths where parts are apart: a column for each part of `waits`."""
        ops, chain, seconds = self.ops, self.chain, self.ops.seconds.copy()
        seconds[chain.milestones] = 0.0
        is_milestone = np.zeros(len(seconds), dtype=bool)
        is_milestone[chain.milestones] = True
        heads, tails = np.zeros((2, len(ops.seconds), num_parts))
        through = np.zeros((max(0, len(chain.milestones) - 1), num_parts))
        starts = chain.behind - is_milestone
        within = [
            (target, source, transfer)
            for target, source, transfer in waits
            if 0 <= chain.behind[source] == starts[target]
        ]
        for target, source, transfer in within:
            reached = through[starts[target]] if is_milestone[target] else heads[target]
            np.maximum(reached, heads[source] + (seconds[source] + transfer), out=reached)
        for target, source, transfer in reversed(within):
            if chain.is_between[source] and (chain.is_between[target] or is_milestone[target]):
                np.maximum(tails[source], tails[target] + (seconds[target] + transfer), out=tails[source])
        return Paths(heads=heads, tails=tails, through=through)


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The longest paths within stretches, if one of some parts is apart; each has a column.

    Attributes:
        heads: `(ops, parts)`: from the milestone that an op is behind to it.
        tails: `(ops, parts)`: from an op, without itself, to the next milestone.
        through: `(stretches, parts)`: from milestone to milestone.
    """

    heads: Floats
    tails: Floats
    through: Floats
