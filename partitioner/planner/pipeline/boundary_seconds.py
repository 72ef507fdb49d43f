"""What two devices add to the chain of a step at the boundary between them, if they hold all that counts there.

A stretch of the chain that a boundary cuts counts with one part (`chain_seconds.py`), which knows neither the work of
the other device in it nor that tensors wait their turn between the two (`channel_delays.py`). Both parts know it
together: where the items that a boundary reaches, before it and behind it, are all in the two parts beside it, and no
other boundary reaches them, the chain takes so much longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.chain import Numbers
from partitioner.planner.pipeline.chain_stretches import Stretches
from partitioner.planner.pipeline.channel_delays import channel_delays
from partitioner.planner.pipeline.channel_tensors import ChannelTensor, ChannelTensors, Reader
from partitioner.planner.pipeline.op_places import Floats


@dataclass(frozen=True, kw_only=True)
class BoundarySeconds:
    """What is added at each boundary, `(n + 1,)`; boundary i is that before item i.

    Attributes:
        there: To the chain up to its turn.
        back: Behind the turn, to stretches that count with the part behind the boundary.
        late: Behind the turn, to stretches that count with the part before it.
        rest: `(n + 1, n + 1)`, as all of these: what items i to j have left to do once the chain has come back to them,
            if they have all that the boundary at their end reaches, and so have the items behind.
        is_met_before: Whether items i to j have all before their end that the boundary there reaches.
        is_met_behind: Whether they have all behind their start that the boundary there reaches, and the boundary at
            their end reaches none of the stretches.
    """

    there: Floats
    back: Floats
    late: Floats
    rest: Floats
    is_met_before: NDArray[np.bool_]
    is_met_behind: NDArray[np.bool_]

    @classmethod
    def none(cls, rest: Floats) -> BoundarySeconds:
        """Nothing at any boundary, where parts have this left to do."""
        nothing, never = np.zeros(len(rest)), np.zeros(rest.shape, dtype=bool)
        return cls(there=nothing, back=nothing, late=nothing, rest=rest, is_met_before=never, is_met_behind=never)


def boundary_seconds(
    stretches: Stretches, over_boundary: Floats, before: Floats, rest: Floats, last: Numbers
) -> BoundarySeconds:
    """What is added at each boundary.

    Args:
        stretches: Of the chain.
        over_boundary: `(stretches, n + 1)`: what they count with where one boundary cuts the step.
        before: `(stretches, n + 1)`: what counts besides where the part before the boundary is the first.
        rest: `(n + 1, n + 1)`: what parts have left to do, whatever is behind them.
        last: `(n + 1,)`: the number of the last milestone that counts with items behind a boundary.
    """
    reached = _Reached.by(stretches)
    seconds = over_boundary.copy()
    for stretch, boundary in stretches.near_cuts:
        serial = max(stretches.serial_seconds(stretch, boundary))
        if serial > seconds[stretch.number, boundary]:
            seconds[stretch.number, boundary] = serial
            reached.widen(boundary, stretch.number, stretch.number + 1)
    milestones = stretches.ops.seconds[stretches.chain.milestones]
    tensors = ChannelTensors(
        ops=stretches.ops,
        chain=stretches.chain,
        waits=stretches.boundary_waits,
        heads=stretches.boundary_paths.heads,
        tails=stretches.boundary_paths.tails,
    )
    near = reached.near(tensors.by_turn())
    delays = channel_delays(near, milestones, seconds)
    if before.any():
        delays = np.minimum(delays, channel_delays(near, milestones, seconds + before))
    for boundary in np.flatnonzero(delays.any(axis=0)).tolist():
        reached.widen_to_tensors(boundary, near)
    more_rest = _rest(stretches, reached, seconds + delays, rest, last)
    added, boundaries = seconds - over_boundary + delays, np.arange(stretches.ops.num_items + 1)
    is_back = np.arange(len(added)) >= stretches.chain.turn
    is_late = is_back[:, None] & (stretches.middles[:, None] < boundaries)
    return BoundarySeconds(
        there=added[~is_back].sum(axis=0),
        back=np.where(is_late, 0.0, added)[is_back].sum(axis=0),
        late=np.where(is_late, added, 0.0).sum(axis=0),
        rest=more_rest,
        is_met_before=reached.is_met_before,
        is_met_behind=reached.is_met_behind,
    )


def _rest(stretches: Stretches, reached: _Reached, seconds: Floats, rest: Floats, last: Numbers) -> Floats:
    """What parts have left to do, from the start of a stretch on the way back that their end cuts.

    It counts with the part behind, but this one has some of its work, and of that which follows from it: less than what
    the chain takes in the meantime is none of it.

    Args:
        stretches: Of the chain.
        reached: By boundaries, which are widened.
        seconds: `(stretches, n + 1)`: what they count with at the most where one boundary cuts the step.
        rest: As for `boundary_seconds`.
        last: As for `boundary_seconds`.
    """
    most, milestones = rest.copy(), stretches.ops.seconds[stretches.chain.milestones]
    for stretch, boundary in stretches.near_cuts:
        number, end = stretch.number, int(last[boundary])
        if number < stretches.chain.turn or stretch.middle < boundary:
            continue
        meanwhile = seconds[number:end, boundary].sum() + milestones[number + 1 : end + 1].sum()
        left = stretches.left(number, boundary) - meanwhile
        if (left > most[:, boundary]).any():
            most[:, boundary] = np.maximum(most[:, boundary], left)
            reached.widen(boundary, number, end)
    return most


@dataclass(frozen=True, kw_only=True)
class _Reached:
    """What each boundary reaches, which widens.

    Attributes:
        stretches: Of the chain.
        items: `(2, n + 1)`: the first item that is reached, and the end of those that are.
        there: The same of stretches up to the turn.
        back: Of those behind it.
    """

    stretches: Stretches
    items: Numbers
    there: Numbers
    back: Numbers

    @classmethod
    def by(cls, stretches: Stretches) -> _Reached:
        """Nothing yet."""
        places = np.arange(stretches.ops.num_items + 1)
        nothing = np.array([np.full_like(places, len(stretches.chain.milestones)), np.zeros_like(places)])
        return cls(stretches=stretches, items=np.array([places, places]), there=nothing, back=nothing.copy())

    @property
    def is_met_before(self) -> NDArray[np.bool_]:
        """As in `BoundarySeconds`."""
        return np.arange(self.items.shape[1])[:, None] <= self.items[0]

    @property
    def is_met_behind(self) -> NDArray[np.bool_]:
        """As in `BoundarySeconds`."""
        has_all = self.items[1][:, None] <= np.arange(self.items.shape[1])
        return has_all & (self.there[1][:, None] <= self.there[0]) & (self.back[1] <= self.back[0][:, None])

    def near(self, tensors: Sequence[ChannelTensor]) -> list[ChannelTensor]:
        """The tensors, which cross where all between their makers and readers is near.

        Between two of more devices, what is sent before the turn and read behind it has time to arrive.
        """
        if self.stretches.ops.has_one_channel:
            return [*tensors]
        return [
            replace(tensor, readers=[self._near(tensor, reader) for reader in tensor.readers]) for tensor in tensors
        ]

    def _near(self, tensor: ChannelTensor, reader: Reader) -> Reader:
        low, high = self._range(tensor.number, reader.reached)
        nearby = np.zeros_like(reader.seconds, dtype=bool)
        if not tensor.number < self.stretches.chain.turn < reader.reached:
            nearby[max(0, high + 1 - self.stretches.reach) : low + self.stretches.reach + 1] = True
        return replace(reader, seconds=np.where(nearby, reader.seconds, 0.0))

    def widen_to_tensors(self, boundary: int, tensors: Sequence[ChannelTensor]) -> None:
        """Let a boundary reach all between the makers and readers of what crosses it."""
        for tensor in tensors:
            for reader in tensor.readers:
                if reader.seconds[boundary] > 0:
                    self.widen(boundary, tensor.number, reader.reached)

    def widen(self, boundary: int, number: int, end: int) -> None:
        """Let a boundary reach the stretches from a milestone to another one."""
        low, high = self._range(number, end)
        of_way = self.there if number < self.stretches.chain.turn else self.back
        for reached, first, behind in ((self.items, low, high + 1), (of_way, number, max(end, number + 1))):
            reached[0, boundary] = min(reached[0, boundary], first)
            reached[1, boundary] = max(reached[1, boundary], behind)

    def _range(self, number: int, end: int) -> tuple[int, int]:
        lowest, highest = self.stretches.ranges
        own = slice(min(number, len(lowest) - 1), max(end, number + 1))
        return int(lowest[own].min()), int(highest[own].max())
