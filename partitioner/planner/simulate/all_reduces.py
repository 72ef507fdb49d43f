"""All-reduce of gradients over replicas: the time, memory and bytes sent that it adds to the step of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Topology
from partitioner.ir.devices import share_memory
from partitioner.ir.op_graph import OpGraph, Tensor
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import MemoryUse
from partitioner.ir.stage_programs import Gather, StagePrograms
from partitioner.planner.simulate.exchange import Exchange
from partitioner.planner.simulate.exchange_seconds import SumTimes, exchange_rounds, sum_times
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.stages.actions import UPDATE
from partitioner.stages.buckets import BUCKET_BYTES, buckets

Floats = NDArray[np.float64]
Curve = tuple[tuple[float, int], ...]
"""Seconds, and bytes held from then on; ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """The exchange of a device of the first replica with its peers, after the last backward of its stages.

    Attributes:
        device: Its name.
        peers: Indices of it and its peers.
        sharing: How many replicas each of them works for.
        sum_bytes: Of gradients that are summed.
        bucket_bytes: Of a message beside the gradients that it is made of.
        row_bytes: Of rows of sparse gradients, which every peer gets of all.
        shares_memory: Whether peers share memory: then they sum once, in turns.
        times: Seconds of the exchange alone.
        ready_seconds: When the last backward of its stages has ended.
        waiting_seconds: Until an uplink that it needs is free.
    """

    device: str
    peers: tuple[int, ...]
    sharing: int
    sum_bytes: int
    bucket_bytes: int
    row_bytes: int
    shares_memory: bool
    times: SumTimes
    ready_seconds: float = 0.0
    waiting_seconds: float = 0.0

    @property
    def end_seconds(self) -> float:
        """When every peer has the sums."""
        return self.ready_seconds + self.waiting_seconds + self.times.seconds

    @property
    def buffer_bytes(self) -> int:
        """Bytes of messages, of the sums and of all rows on a peer, beyond its own gradients."""
        sums = self.sum_bytes // len(self.peers) if self.shares_memory else self.sum_bytes
        own = self.sum_bytes if self.sharing > 1 and len(self.peers) > 1 else 0
        return own + self.bucket_bytes + sums + self.row_bytes * len(self.peers) * self.sharing

    def exchanges(self, machines: Topology) -> Iterator[Exchange]:
        """The exchanges between peers: parts of their gradients, parts of the sums, and their rows."""
        rounds = exchange_rounds(self.sum_bytes, machines, self.peers)
        groups = [(group, int(2 * round_.part_bytes)) for round_ in rounds for group in round_.groups]
        for group, size in [*groups, (self.peers, self.row_bytes * self.sharing)]:
            if size and len(group) > 1:
                yield Exchange(
                    devices=tuple(machines.devices[index].name for index in group),
                    bytes_per_pair=size,
                    start_seconds=self.ready_seconds,
                    end_seconds=self.end_seconds,
                )


@dataclass(frozen=True)
class ReplicaSums:
    """The sums of gradients over replicas.

    Attributes:
        machines: All devices.
        groups: The devices of each replica.
    """

    machines: Topology
    groups: Sequence[Sequence[int]]

    def least_seconds(self, size_bytes: float, how: Gather) -> Floats:
        """What a gradient adds at the least to the exchange of the device that makes it: `(devices,)` of a replica.

        A message of sums has no more than `BUCKET_BYTES`, or one gradient alone.
        """
        of_sums, of_messages, of_rows, of_gathered = self._rates
        if how is Gather.SUM:
            return size_bytes * of_sums + min(1.0, size_bytes / BUCKET_BYTES) * of_messages
        return (size_bytes * of_rows + of_gathered) * (how is Gather.CONCAT)

    @cached_property
    def _rates(self) -> tuple[Floats, Floats, Floats, Floats]:
        """By device: seconds of a summed byte, of a message, of a byte of rows, and of a tensor that has rows."""

        def taken(sums: float, rows: float, num_messages: int = 1) -> Floats:
            times = (
                sum_times(
                    sums,
                    rows,
                    num_tensors=1,
                    topology=self.machines,
                    peers=peers,
                    sharing=sharing,
                    num_messages=num_messages,
                    num_gathered=num_messages,
                )
                for peers, sharing in self._peers()
            )
            return np.array([of_device.seconds for of_device in times])

        large = 2.0**30
        sums, rows = taken(large, 0.0), taken(0.0, large)
        return (
            (taken(2 * large, 0.0) - sums) / large,
            taken(large, 0.0, num_messages=2) - sums,
            (taken(0.0, 2 * large) - rows) / large,
            taken(0.0, large, num_messages=2) - rows,
        )

    def seconds(self, programs: StagePrograms, graph: OpGraph, num_microbatches: int) -> float:
        """Seconds of the longest exchange alone, for the graph of a microbatch."""
        return max(
            (exchange.times.seconds for exchange in self._exchanges(programs, graph, num_microbatches)), default=0.0
        )

    def added_to(
        self, staged: PipelineSchedule, programs: StagePrograms, graph: OpGraph, num_microbatches: int
    ) -> PipelineSchedule:
        """The step of one replica, with the time and memory that its sums take.

        A device sums its gradients while earlier stages still run backwards. What remains of the sums after the last
        backward delays the updates.

        Args:
            staged: The step on the devices of the first replica.
            programs: Its programs.
            graph: The op graph at the size of a microbatch.
            num_microbatches: Parts of a replica's batch.
        """
        ended: dict[str, float] = {}
        for action in staged.timeline:
            if action.action != UPDATE:
                ended[action.device] = max(ended.get(action.device, 0.0), action.end_seconds)
        exchanges = self._exchanges(programs, graph, num_microbatches)
        reduces = _queued_on_uplinks(
            [replace(exchange, ready_seconds=ended[exchange.device]) for exchange in exchanges]
        )
        gate = max(ended.values())
        delay = max([0.0, *(reduce.end_seconds - gate for reduce in reduces)])
        buffers = {reduce.device: reduce for reduce in reduces}
        memory = {name: _delayed_curve(curve, gate, delay, buffers.get(name)) for name, curve in staged.memory.items()}
        return replace(
            staged,
            step_seconds=staged.step_seconds + delay,
            peak={name: _peak(use, memory.get(name, ()), buffers.get(name)) for name, use in staged.peak.items()},
            memory=memory,
            timeline=tuple(_delayed(action, delay) for action in staged.timeline),
            exchanges=tuple(exchange for reduce in reduces for exchange in reduce.exchanges(self.machines)),
        )

    def _peers(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """For each device of the first replica, it and its peers, and how many replicas each of them works for."""
        for of_replicas in zip(*self.groups, strict=True):
            peers = tuple(dict.fromkeys(of_replicas))
            yield peers, len(of_replicas) // len(peers)

    def _exchanges(self, programs: StagePrograms, graph: OpGraph, num_microbatches: int) -> Iterator[AllReduce]:
        """The exchange of each device that has something to sum."""
        made_on = {name: program.device for program in programs.repeated for name in program.outputs}
        for peers, sharing in self._peers():
            device = self.machines.devices[peers[0]].name
            own = [(graph.tensor[name], how) for name, how in programs.gathered.items() if made_on.get(name) == device]
            sums = sum(gradient.size_bytes for gradient, how in own if how is Gather.SUM)
            rows = sum(gradient.size_bytes for gradient, how in own if how is Gather.CONCAT) * num_microbatches
            if not (sums or rows):
                continue
            together = share_memory([self.machines.devices[index].name for index in peers])
            messages = buckets(
                (gradient, None if together else gradient.spec.dtype, gradient.size_bytes)
                for gradient, how in own
                if how is Gather.SUM
            )
            yield AllReduce(
                device=device,
                peers=peers,
                sharing=sharing,
                sum_bytes=sums,
                row_bytes=rows,
                bucket_bytes=_bucket_bytes(messages),
                shares_memory=together,
                times=sum_times(
                    sums,
                    rows,
                    num_tensors=len(own),
                    topology=self.machines,
                    peers=peers,
                    sharing=sharing,
                    num_messages=max(len(messages), 1),
                    num_gathered=max(sum(how is Gather.CONCAT for _, how in own), 1),
                ),
            )


def _bucket_bytes(messages: Sequence[Sequence[Tensor]]) -> int:
    """Bytes that messages take beyond gradients and sums.

    A message replaces its gradients, and its sums replace it. Where there are several, one at a time adds to the rest.
    """
    sizes = [sum(gradient.size_bytes for gradient in message) for message in messages]
    return max(sizes) if len(sizes) > 1 else 0


def _queued_on_uplinks(reduces: Sequence[AllReduce]) -> list[AllReduce]:
    """All-reduces in the order in which they are ready, each waiting until its uplinks are free."""
    free = [0.0] * max((len(reduce.times.uplink_seconds) for reduce in reduces), default=0)
    queued = []
    for reduce in sorted(reduces, key=lambda reduce: reduce.ready_seconds):
        taken = reduce.times.uplink_seconds
        waits = max((free[uplink] - reduce.ready_seconds for uplink, seconds in enumerate(taken) if seconds), default=0)
        queued.append(replace(reduce, waiting_seconds=max(0.0, waits)))
        free = [max(end, reduce.ready_seconds) + seconds for end, seconds in zip(free, taken, strict=True)]
    return queued


def _delayed(action: PlannedAction, delay: float) -> PlannedAction:
    if action.action != UPDATE:
        return action
    return replace(action, start_seconds=action.start_seconds + delay, end_seconds=action.end_seconds + delay)


def _delayed_curve(curve: Curve, gate: float, delay: float, reduce: AllReduce | None) -> Curve:
    """The bytes that a device holds over time when updates wait; sums take memory once its backwards have ended."""
    later = [(seconds + delay if seconds >= gate else seconds, size) for seconds, size in curve]
    if reduce is None:
        return tuple(later)
    ready = reduce.ready_seconds
    before = [point for point in later if point[0] < ready]
    at = [(ready, before[-1][1])] if before else []
    behind = [point for point in later if point[0] >= ready]
    return (*before, *((seconds, size + reduce.buffer_bytes) for seconds, size in [*at, *behind]))


def _peak(use: MemoryUse, curve: Curve, reduce: AllReduce | None) -> MemoryUse:
    """Peak memory, which may now be during the sums: the device then holds gradients and variables only."""
    if reduce is None or not curve:
        return use
    seconds, most = max(curve, key=lambda point: point[1])
    if most <= use.total_bytes:
        return use
    fixed = use.parameter_bytes + use.slot_bytes + use.state_bytes
    gradients = min(most - fixed, reduce.sum_bytes + reduce.row_bytes + reduce.buffer_bytes)
    return replace(
        use, gradient_bytes=gradients, activation_bytes=most - fixed - gradients, seconds=seconds, largest=()
    )
