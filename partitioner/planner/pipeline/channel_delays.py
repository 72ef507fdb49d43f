"""How much later the chain of a step goes on where its tensors wait for the channel between two devices.

The channel carries one tensor at a time each way, first come first served. So what a skip connection sends early on
delays what the next layer waits for, and what waits for all branches of a block waits for their transfers in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from partitioner.planner.pipeline.channel_tensors import ChannelTensor
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.part_bounds import one_machine_seconds


def channel_delays(tensors: Sequence[ChannelTensor], milestones: Floats, stretches: Floats) -> Floats:
    """What is to be added to the seconds of stretches: `(stretches, boundaries)`.

    The sum of any of them with their delays is no more than what passes from the start to the end of the last one.

    Args:
        tensors: What the chain reads, by turn.
        milestones: `(stretches + 1,)`: seconds of the milestones.
        stretches: `(stretches, boundaries)`: seconds from each milestone to the next, without both.
    """
    before = np.insert(stretches.cumsum(axis=0), 0, 0.0, axis=0)
    ends = before + milestones.cumsum()[:, None]
    delays = np.zeros_like(stretches)
    for boundary in range(delays.shape[1]):
        crossing = [tensor for tensor in tensors if tensor.seconds[boundary] > 0]
        for stretch, seconds in _delays(crossing, boundary, ends[:, boundary] - milestones, ends[:, boundary]):
            delays[stretch, boundary] += seconds
    return delays


def _delays(
    tensors: Sequence[ChannelTensor], boundary: int, starts: Floats, ends: Floats
) -> Iterator[tuple[int, float]]:
    """The stretches at whose ends a tensor has not arrived yet, and by how much; milestones start and end so by now."""
    late, due, free = 0.0, list[tuple[int, float]](), [0.0, 0.0]
    for together in [*_together(tensors), list[ChannelTensor]()]:
        reached = together[0].number if together else len(starts) - 1
        while due and due[0][0] <= reached:
            number, arrived = heappop(due)
            if arrived > starts[number] + late:
                yield number - 1, float(arrived - starts[number] - late)
                late = float(arrived - starts[number])
        for way in (False, True):
            own = [tensor for tensor in together if tensor.is_back[boundary] == way]
            ready = [float(ends[tensor.number] + late + tensor.after[boundary]) for tensor in own]
            sent = [(tensor, max(free[way], since)) for tensor, since in zip(own, ready, strict=True)]
            for arrival in _arrivals(sent, boundary):
                heappush(due, arrival)
            if own:
                free[way] = max(free[way], min(ready)) + float(sum(tensor.seconds[boundary] for tensor in own))


def _arrivals(sent: Sequence[tuple[ChannelTensor, float]], boundary: int) -> Iterator[tuple[int, float]]:
    """The milestones that wait for tensors which are sent in any order, and when all of these have reached each.

    Args:
        sent: The tensors, and when each is sent at the earliest.
        boundary: That they cross.
    """
    crossing = [(reader, index) for index, (tensor, _) in enumerate(sent) for reader in tensor.readers]
    crossing = [(reader, index) for reader, index in crossing if reader.seconds[boundary] > 0]
    for reached in sorted({reader.reached for reader, _ in crossing}):
        jobs: dict[int, tuple[float, float]] = {}  # of each tensor, its transfer, and what follows it
        for reader, index in crossing:
            if reader.reached <= reached:
                behind = float(reader.behind[boundary]) if reader.reached == reached else 0.0
                jobs[index] = max(jobs.get(index, (0.0, 0.0)), (float(reader.seconds[boundary]), behind), key=sum)
        starts, (transfers, tails) = [sent[index][1] for index in jobs], zip(*jobs.values(), strict=True)
        yield reached, one_machine_seconds(np.array(starts), np.array(transfers), np.array(tails))


def _together(tensors: Sequence[ChannelTensor]) -> Iterator[list[ChannelTensor]]:
    """Tensors by turn, in groups of which each is sent before the next; within one, in any order."""
    group, last = list[ChannelTensor](), -1
    for tensor in tensors:
        if group and tensor.first_turn > last:
            yield group
            group = []
        group.append(tensor)
        last = max(last, tensor.last_turn)
    if group:
        yield group
