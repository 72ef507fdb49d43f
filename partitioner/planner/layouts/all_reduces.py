"""All-reduce of gradients over replicas: the time, memory and bytes sent that it adds to the step of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cost_models.topology import Topology
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import share_memory, short_name
from partitioner.ir.op_graph import OpGraph, Tensor
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import MemoryUse
from partitioner.ir.stage_programs import Gather
from partitioner.planner.layouts.result import SearchResult, with_bounds
from partitioner.planner.simulate.exchange import Exchange
from partitioner.planner.simulate.exchange_seconds import SumTimes, exchange_rounds, sum_times
from partitioner.stages.actions import UPDATE
from partitioner.stages.buckets import buckets

_LARGE_BYTES = 2**30

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
        ready_seconds: When the last backward of its stages has ended.
        times: Seconds of the exchange alone.
        waiting_seconds: Until an uplink that it needs is free.
    """

    device: str
    peers: tuple[int, ...]
    sharing: int
    sum_bytes: int
    bucket_bytes: int
    row_bytes: int
    shares_memory: bool
    ready_seconds: float
    times: SumTimes
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


def with_all_reduce(
    result: SearchResult, graph: OpGraph, machines: Topology, groups: Sequence[Sequence[int]]
) -> SearchResult:
    """The result for one replica, with the time and memory that summing gradients over all replicas takes.

    A device sums its gradients while earlier stages still run backwards. What remains of the sums after the last
    backward delays the updates.

    Args:
        result: A step in stages on the devices of the first replica.
        graph: The op graph at the size of a microbatch.
        machines: All devices.
        groups: The devices of each replica.

    Raises:
        InfeasibleError: A device has no room for the sums.
    """
    assert result.staged is not None
    reduces = _all_reduces(result, graph, machines, groups)
    gate = max(action.end_seconds for action in result.staged.timeline if action.action != UPDATE)
    delay = max([0.0, *(reduce.end_seconds - gate for reduce in reduces)])
    buffers = {reduce.device: reduce for reduce in reduces}
    memory = {
        name: _delayed_curve(curve, gate, delay, buffers.get(name)) for name, curve in result.staged.memory.items()
    }
    peak = {name: _peak(use, memory.get(name, ()), buffers.get(name)) for name, use in result.staged.peak.items()}
    _refuse_too_much(peak, machines, buffers)
    step = result.staged.step_seconds + delay
    staged = replace(
        result.staged,
        step_seconds=step,
        peak=peak,
        memory=memory,
        timeline=tuple(_delayed(action, delay) for action in result.staged.timeline),
    )
    solver = result.solver
    # Replicas of one stage sum the same gradients when their backwards have ended, in any number of microbatches.
    of_family = solver.family_lower_bound
    of_family = of_family + delay if of_family is not None and len(groups[0]) == 1 else of_family
    return replace(
        result,
        staged=staged,
        schedule=staged.schedule,
        solver=with_bounds(
            solver, step, lower_bound=solver.lower_bound, family_lower_bound=of_family, family=solver.family
        ),
        considered=tuple(
            replace(candidate, step_seconds=candidate.step_seconds + delay) for candidate in result.considered
        ),
        exchanges=tuple(exchange for reduce in reduces for exchange in reduce.exchanges(machines)),
    )


def sum_seconds_per_byte(machines: Topology, groups: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Seconds for each byte of gradients that a device of the first replica sums with its peers, without latencies."""

    def seconds(size_bytes: float, peers: tuple[int, ...], sharing: int) -> float:
        return sum_times(size_bytes, 0.0, num_tensors=1, topology=machines, peers=peers, sharing=sharing).seconds

    rates = []
    for of_replicas in zip(*groups, strict=True):
        peers = tuple(dict.fromkeys(of_replicas))
        sharing = len(of_replicas) // len(peers)
        twice, once = (seconds(size, peers, sharing) for size in (2 * _LARGE_BYTES, _LARGE_BYTES))
        rates.append((twice - once) / _LARGE_BYTES)
    return tuple(rates)


def _all_reduces(
    result: SearchResult, graph: OpGraph, machines: Topology, groups: Sequence[Sequence[int]]
) -> list[AllReduce]:
    programs, staged = result.programs, result.staged
    assert programs is not None and staged is not None
    tensor = graph.tensor
    made_on = {name: p.device for p in programs.repeated for name in p.outputs}
    reduces = []
    for of_replicas in zip(*groups, strict=True):
        peers = tuple(dict.fromkeys(of_replicas))
        sharing = len(of_replicas) // len(peers)
        device = machines.devices[peers[0]].name
        own = [(tensor[name], how) for name, how in programs.gathered.items() if made_on.get(name) == device]
        sums = sum(gradient.size_bytes for gradient, how in own if how is Gather.SUM)
        rows = sum(gradient.size_bytes for gradient, how in own if how is Gather.CONCAT) * result.num_microbatches
        together = share_memory([machines.devices[index].name for index in peers])
        messages = buckets(
            (gradient, None if together else gradient.spec.dtype, gradient.size_bytes)
            for gradient, how in own
            if how is Gather.SUM
        )
        if sums or rows:
            reduces.append(
                AllReduce(
                    device=device,
                    peers=peers,
                    sharing=sharing,
                    sum_bytes=sums,
                    row_bytes=rows,
                    bucket_bytes=_bucket_bytes(messages),
                    shares_memory=together,
                    ready_seconds=max(
                        action.end_seconds
                        for action in staged.timeline
                        if action.device == device and action.action != UPDATE
                    ),
                    times=sum_times(
                        sums,
                        rows,
                        num_tensors=len(own),
                        topology=machines,
                        peers=peers,
                        sharing=sharing,
                        num_messages=max(len(messages), 1),
                    ),
                )
            )
    return _queued_on_uplinks(reduces)


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


def _refuse_too_much(peak: Mapping[str, MemoryUse], machines: Topology, buffers: Mapping[str, AllReduce]) -> None:
    room = {placed.name: placed.memory_bytes for placed in machines.devices}
    over = [name for name, use in peak.items() if use.total_bytes > room[name]]
    if over:
        raise InfeasibleError(
            "there is no room to sum the gradients of all replicas",
            notes=[
                f"{short_name(name)}: {peak[name].total_bytes / 2**30:.3f} GiB needed, {room[name] / 2**30:.3f} GiB to "
                f"use; {buffers[name].buffer_bytes / 2**30:.3f} GiB of it for sums"
                for name in over
                if name in buffers
            ],
            help="fewer replicas of more devices each, or more microbatches",
        )
