"""How much later the chain of a step goes on where its tensors wait for the channel between two devices.

The channel carries one tensor at a time each way, first come first served. So what a skip connection sends early on
delays what the next layer waits for. Turns follow from the chain. An op beside it that waits for the chain alone has
run before the second milestone from then on begins, as a device runs first what became ready first
(`simulate/unpipelined.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.step_ops import StepOps, Waits


@dataclass(kw_only=True)
class _Tensor:
    """What an op makes for ops of the chain, maybe over some boundaries.

    Attributes:
        maker: The op.
        first_turn: When it is sent at the earliest. Of milestones that take time, the nth makes its own tensor in turn
            2n, and what comes behind it and before the next one is made in turn 2n + 1.
        last_turn: When it is sent at the latest.
        seconds: `(boundaries,)`: of its transfer; 0 where it does not cross.
        readers: Ops of the chain that read it, and the seconds to each; 0 where that is on the same side.
    """

    maker: int
    first_turn: int
    last_turn: int
    seconds: Floats
    readers: list[tuple[int, Floats]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ChannelDelays:
    """Delays of the chain of a step.

    Attributes:
        ops: The ops of the step.
        chain: Their chain.
        waits: Their transfers over each boundary: entry k of an array is of the first k items and the others.
        heads: `(ops, boundaries)`: the longest paths from milestones to the ops behind them.
        tails: `(ops, boundaries)`: those from ops, without themselves, to the next milestones.
        stretches: `(stretches, boundaries)`: seconds from each milestone to the next, without both.
    """

    ops: StepOps
    chain: Chain
    waits: Waits
    heads: Floats
    tails: Floats
    stretches: Floats

    def seconds(self) -> Floats:
        """What is to be added to the seconds of stretches.

        The sum of any of them with their delays is no more than what passes from the start to the end of the last one.
        """
        tensors = sorted(self._tensors().values(), key=lambda tensor: tensor.first_turn)
        of_milestones = self.ops.seconds[self.chain.milestones][:, None]
        ends = of_milestones.cumsum(axis=0) + np.insert(self.stretches.cumsum(axis=0), 0, 0.0, axis=0)
        delays = np.zeros_like(self.stretches)
        for boundary in range(delays.shape[1]):
            crossing = [tensor for tensor in tensors if tensor.seconds[boundary] > 0]
            for stretch, late in self._late(crossing, boundary, ends[:, boundary] - of_milestones[:, 0]):
                delays[stretch, boundary] += late
        return delays

    def _late(self, tensors: Sequence[_Tensor], boundary: int, starts: Floats) -> Iterator[tuple[int, float]]:
        """The stretches at whose ends a tensor has not arrived yet, and by how much."""
        milestones, behind = self.chain.milestones, self.chain.behind
        seconds, heads, tails = self.ops.seconds, self.heads[:, boundary], self.tails[:, boundary]
        late, due, free = 0.0, list[tuple[int, float]](), [0.0, 0.0]
        for together in [*_together(tensors), list[_Tensor]()]:
            until = behind[together[0].maker] if together else len(milestones)
            while due and due[0][0] <= until:
                number, arrived = heappop(due)
                if arrived > starts[number] + late:
                    yield number - 1, float(arrived - starts[number] - late)
                    late = float(arrived - starts[number])
            for way in (False, True):
                own = [tensor for tensor in together if (self.ops.place[tensor.maker] >= boundary) == way]
                ready = []
                for tensor in own:
                    number, maker = behind[tensor.maker], tensor.maker
                    after = heads[maker] + seconds[maker] if milestones[number] != maker else 0.0
                    ready.append(starts[number] + late + seconds[milestones[number]] + after)
                    begins = max(free[way], ready[-1])
                    for reader, to_reader in tensor.readers:
                        if to_reader[boundary] > 0:
                            is_milestone = milestones[behind[reader]] == reader
                            rest = 0.0 if is_milestone else seconds[reader] + tails[reader]
                            reached = behind[reader] + (not is_milestone)
                            if reached < len(milestones):
                                heappush(due, (int(reached), float(begins + to_reader[boundary] + rest)))
                if own:
                    free[way] = max(free[way], min(ready)) + sum(tensor.seconds[boundary] for tensor in own)

    def _tensors(self) -> Mapping[int, _Tensor]:
        """By the op that makes them."""
        chain, tensors = self.chain, dict[int, _Tensor]()
        turns = (self.ops.seconds[chain.milestones] > 0).cumsum()
        for reader, maker, seconds in self.waits:
            if not isinstance(seconds, np.ndarray) or not self._is_on_chain[reader] or chain.behind[maker] < 0:
                continue
            number, is_on_chain = int(chain.behind[maker]), bool(self._is_on_chain[maker])
            if not is_on_chain:
                seconds = np.where(self._has_all(maker, number), seconds, 0.0)
            if maker not in tensors:
                is_milestone = chain.milestones[number] == maker and self.ops.seconds[maker] > 0
                first = 2 * int(turns[number]) + (not is_milestone)
                last = first if is_on_chain else first + 2
                tensors[maker] = _Tensor(maker=maker, first_turn=first, last_turn=last, seconds=seconds)
            tensors[maker].seconds = np.maximum(tensors[maker].seconds, seconds)
            tensors[maker].readers.append((reader, seconds))
        return tensors

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
                number = int(self.chain.behind[reader])
                number += self.chain.milestones[number] != reader
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
                is_there = np.where(is_apart, self._arrived.get((source, place), number + 1) <= number, True)
                if not self._is_on_chain[source]:
                    is_there &= is_apart | ((ops.seconds[source] == 0) & self._has_all(source, number))
                has_all &= is_there
        return has_all


def _together(tensors: Sequence[_Tensor]) -> Iterator[list[_Tensor]]:
    """Tensors, sorted by their turns, in groups of which each is sent before the next; within one, in any order."""
    group, last = list[_Tensor](), -1
    for tensor in tensors:
        if group and tensor.first_turn > last:
            yield group
            group = []
        group.append(tensor)
        last = max(last, tensor.last_turn)
    if group:
        yield group
