"""What ops of the chain of a step read over the channel between two devices, and in which turn it is sent.

Turns follow from the chain. An op beside it that waits for the chain alone has run before the second milestone from
then on begins, as a device runs first what became ready first (`simulate/unpipelined.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.step_ops import StepOps, Waits


@dataclass(frozen=True, slots=True)
class Reader:
    """An op of the chain that reads a tensor; arrays are `(boundaries,)`.

    Attributes:
        reached: The number of the first milestone that waits for the op: itself, if it is one.
        seconds: Of the transfer to it; 0 where it is on the side of the tensor.
        behind: Its own seconds and those from it to the milestone.
    """

    reached: int
    seconds: Floats
    behind: Floats


@dataclass(frozen=True, kw_only=True)
class ChannelTensor:
    """What an op makes for ops of the chain, maybe over some boundaries; arrays are `(boundaries,)`.

    Attributes:
        number: Of the last milestone before the op, or its own.
        after: When the tensor is made, after that milestone's end at the earliest.
        first_turn: When it is sent at the earliest. Of milestones that take time, the nth makes its own tensor in turn
            2n, and what comes behind it and before the next one is made in turn 2n + 1.
        last_turn: When it is sent at the latest.
        is_back: Where it is made behind the boundary.
        readers: Who reads it.
    """

    number: int
    after: Floats
    first_turn: int
    last_turn: int
    is_back: NDArray[np.bool_]
    readers: list[Reader]

    @cached_property
    def seconds(self) -> Floats:
        """Of its transfer, once for all readers; 0 where it does not cross."""
        return np.max([reader.seconds for reader in self.readers], axis=0)


@dataclass(frozen=True, kw_only=True)
class ChannelTensors:
    """The tensors of a chain that may cross.

    Attributes:
        ops: The ops of the step.
        chain: Their chain.
        waits: Their transfers over each boundary: entry k of an array is of the first k items and the others.
        heads: `(ops, boundaries)`: the longest paths from milestones to the ops behind them.
        tails: `(ops, boundaries)`: those from ops, without themselves, to the next milestones.
    """

    ops: StepOps
    chain: Chain
    waits: Waits
    heads: Floats
    tails: Floats

    def by_turn(self) -> list[ChannelTensor]:
        """Those whose turn is known, the first one first."""
        tensors: dict[int, ChannelTensor] = {}
        for reader, maker, seconds in self.waits:
            if isinstance(seconds, np.ndarray) and self._is_on_chain[reader] and self.chain.behind[maker] >= 0:
                if maker not in tensors:
                    tensors[maker] = self._tensor(maker)
                if not self._is_on_chain[maker]:
                    seconds = np.where(self._has_all(maker, tensors[maker].number), seconds, 0.0)
                tensors[maker].readers.append(self._reader(reader, seconds))
        return sorted(tensors.values(), key=lambda tensor: tensor.first_turn)

    def _tensor(self, maker: int) -> ChannelTensor:
        number, seconds = int(self.chain.behind[maker]), self.ops.seconds[maker]
        is_milestone = self._is_milestone(maker)
        turn = 2 * int(self._num_turns[number]) + (not is_milestone or seconds == 0)
        return ChannelTensor(
            number=number,
            after=np.zeros_like(self.heads[maker]) if is_milestone else self.heads[maker] + seconds,
            first_turn=turn,
            last_turn=turn if self._is_on_chain[maker] else turn + 2,
            is_back=self.ops.place[maker] >= np.arange(self.ops.num_items + 1),
            readers=[],
        )

    def _reader(self, op: int, seconds: Floats) -> Reader:
        if self._is_milestone(op):
            return Reader(int(self.chain.behind[op]), seconds, np.zeros_like(seconds))
        return Reader(int(self.chain.behind[op]) + 1, seconds, self.ops.seconds[op] + self.tails[op])

    def _is_milestone(self, op: int) -> bool:
        return self.chain.milestones[self.chain.behind[op]] == op

    @cached_property
    def _num_turns(self) -> NDArray[np.intp]:
        """`(milestones,)`: how many milestones until then take time."""
        return (self.ops.seconds[self.chain.milestones] > 0).cumsum()

    @cached_property
    def _is_on_chain(self) -> NDArray[np.bool_]:
        is_on_chain = self.chain.is_between.copy()
        is_on_chain[self.chain.milestones] = True
        return is_on_chain

    @cached_property
    def _arrived(self) -> Mapping[tuple[int, int], int]:
        """The first milestone by which what an op makes has been read by the chain at a place."""
        arrived: dict[tuple[int, int], int] = {}
        for reader, maker, _ in self.waits:
            if self._is_on_chain[reader]:
                number = int(self.chain.behind[reader]) + (not self._is_milestone(reader))
                key = maker, int(self.ops.place[reader])
                arrived[key] = min(number, arrived.get(key, number))
        return arrived

    def _has_all(self, op: int, number: int) -> NDArray[np.bool_]:
        """`(boundaries,)`: whether all that an op waits for is there with a milestone: what the chain has made or read.

        What others make of that in no time, such as shapes, is there as well.
        """
        ops, place, boundaries = self.ops, int(self.ops.place[op]), np.arange(self.ops.num_items + 1)
        has_all = np.ones(len(boundaries), dtype=bool)
        for source, _ in ops.sources[op]:
            if ops.waits_for_rows[source]:
                is_apart = (place < boundaries) != (ops.place[source] < boundaries)
                is_there = ~is_apart | (self._arrived.get((source, place), number + 1) <= number)
                if not self._is_on_chain[source]:
                    is_there &= is_apart | ((ops.seconds[source] == 0) & self._has_all(source, number))
                has_all &= is_there
        return has_all
