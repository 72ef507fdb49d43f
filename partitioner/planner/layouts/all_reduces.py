"""What summing gradients over replicas adds to a step that was planned for one of them: time, memory, bytes sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cost_models.topology import Topology
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import share_memory, short_name
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import MemoryUse
from partitioner.ir.stage_programs import Gather
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.simulate.exchange import Exchange
from partitioner.planner.simulate.exchange_seconds import SumTimes, exchange_rounds, sum_times

_UPDATE = "U"
Curve = tuple[tuple[float, int], ...]
"""Seconds, and bytes held from then on; ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """What a device of the first replica exchanges with its twins when the backwards of its stages have ended.

    Attributes:
        device: Its name.
        twins: Indices of it and its twins.
        sharing: How many replicas each of them works for.
        sum_bytes: Of gradients that are summed.
        row_bytes: Of rows of sparse gradients, which every twin gets of all.
        shares_memory: Whether a tensor on one twin is on all: then they sum once, in turns.
        ready_seconds: When the last backward of its stages has ended.
        times: What the exchange takes alone.
        waiting_seconds: Until an uplink that it needs is free.
    """

    device: str
    twins: tuple[int, ...]
    sharing: int
    sum_bytes: int
    row_bytes: int
    shares_memory: bool
    ready_seconds: float
    times: SumTimes
    waiting_seconds: float = 0.0

    @property
    def end_seconds(self) -> float:
        """When every twin has the sums."""
        return self.ready_seconds + self.waiting_seconds + self.times.seconds

    @property
    def buffer_bytes(self) -> int:
        """What a twin holds of the sums and of all rows, beyond its own gradients."""
        sums = self.sum_bytes // len(self.twins) if self.shares_memory else self.sum_bytes
        own = self.sum_bytes if self.sharing > 1 and len(self.twins) > 1 else 0
        return own + sums + self.row_bytes * len(self.twins) * self.sharing

    def exchanges(self, machines: Topology) -> Iterator[Exchange]:
        """What twins send each other: of the sums a part, and of their own gradients another; their rows."""
        sums = exchange_rounds(self.sum_bytes, machines, self.twins)
        groups = [(group, int(2 * one.part_bytes)) for one in sums for group in one.groups]
        for group, size in [*groups, (self.twins, self.row_bytes * self.sharing)]:
            if size and len(group) > 1:
                yield Exchange(
                    devices=tuple(machines.devices[index].name for index in group),
                    bytes_per_pair=size,
                    start_seconds=self.ready_seconds,
                    end_seconds=self.end_seconds,
                )


def with_all_reduce(
    found: SearchResult, graph: OpGraph, machines: Topology, groups: Sequence[Sequence[int]]
) -> SearchResult:
    """What was found for one replica, with what summing gradients over all takes.

    The sums of a device are made while earlier stages still run backwards; what is left when all have ended delays the
    updates.

    Args:
        found: A step in stages on the devices of the first replica.
        graph: The op graph at the size of a microbatch.
        machines: All devices.
        groups: The devices of each replica.

    Raises:
        InfeasibleError: A device has no room for the sums.
    """
    assert found.staged is not None
    reduces = _all_reduces(found, graph, machines, groups)
    gate = max(action.end_seconds for action in found.staged.timeline if action.action != _UPDATE)
    delay = max([0.0, *(reduce.end_seconds - gate for reduce in reduces)])
    buffers = {reduce.device: reduce for reduce in reduces}
    memory = {
        name: _delayed_curve(curve, gate, delay, buffers.get(name)) for name, curve in found.staged.memory.items()
    }
    peak = {name: _peak(use, memory.get(name, ()), buffers.get(name)) for name, use in found.staged.peak.items()}
    _refuse_too_much(peak, machines, buffers)
    step = found.staged.step_seconds + delay
    staged = replace(
        found.staged,
        step_seconds=step,
        peak=peak,
        memory=memory,
        timeline=tuple(_delayed(action, delay) for action in found.staged.timeline),
    )
    bound = found.solver.lower_bound
    return replace(
        found,
        staged=staged,
        schedule=staged.schedule,
        solver=replace(found.solver, objective=step, gap=(step - bound) / step if step else 0.0),
        considered=tuple(replace(way, step_seconds=way.step_seconds + delay) for way in found.considered),
        exchanges=tuple(exchange for reduce in reduces for exchange in reduce.exchanges(machines)),
    )


def _all_reduces(
    found: SearchResult, graph: OpGraph, machines: Topology, groups: Sequence[Sequence[int]]
) -> list[AllReduce]:
    programs, staged = found.programs, found.staged
    assert programs is not None and staged is not None
    tensor = graph.tensor
    made_on = {name: p.device for p in (*programs.forward, *programs.backward) for name in p.outputs}
    reduces = []
    for of_replicas in zip(*groups, strict=True):
        twins = tuple(dict.fromkeys(of_replicas))
        sharing = len(of_replicas) // len(twins)
        name = machines.devices[twins[0]].name
        own = [(one, how) for one, how in programs.gathered.items() if made_on.get(one) == name]
        sums = sum(tensor[one].size_bytes for one, how in own if how is Gather.SUM)
        rows = sum(tensor[one].size_bytes for one, how in own if how is Gather.CONCAT) * found.num_microbatches
        if sums or rows:
            reduces.append(
                AllReduce(
                    device=name,
                    twins=twins,
                    sharing=sharing,
                    sum_bytes=sums,
                    row_bytes=rows,
                    shares_memory=share_memory([machines.devices[index].name for index in twins]),
                    ready_seconds=max(
                        action.end_seconds
                        for action in staged.timeline
                        if action.device == name and action.action != _UPDATE
                    ),
                    times=sum_times(sums, rows, num_tensors=len(own), topology=machines, twins=twins, sharing=sharing),
                )
            )
    return _one_after_the_other(reduces)


def _one_after_the_other(reduces: Sequence[AllReduce]) -> list[AllReduce]:
    """What devices of a host exchange shares its uplink: the first that is ready has it first."""
    free = [0.0] * max((len(reduce.times.uplink_seconds) for reduce in reduces), default=0)
    found = []
    for reduce in sorted(reduces, key=lambda one: one.ready_seconds):
        taken = reduce.times.uplink_seconds
        waits = max((free[uplink] - reduce.ready_seconds for uplink, seconds in enumerate(taken) if seconds), default=0)
        found.append(replace(reduce, waiting_seconds=max(0.0, waits)))
        free = [max(end, reduce.ready_seconds) + seconds for end, seconds in zip(free, taken, strict=True)]
    return found


def _delayed(action: PlannedAction, delay: float) -> PlannedAction:
    if action.action != _UPDATE:
        return action
    return replace(action, start_seconds=action.start_seconds + delay, end_seconds=action.end_seconds + delay)


def _delayed_curve(curve: Curve, gate: float, delay: float, reduce: AllReduce | None) -> Curve:
    """The bytes that a device holds when updates wait, and sums take room from when its backwards have ended."""
    later = [(seconds + delay if seconds >= gate else seconds, size) for seconds, size in curve]
    if reduce is None:
        return tuple(later)
    ready = reduce.ready_seconds
    before = [point for point in later if point[0] < ready]
    at = [(ready, before[-1][1])] if before else []
    behind = [point for point in later if point[0] >= ready]
    return (*before, *((seconds, size + reduce.buffer_bytes) for seconds, size in [*at, *behind]))


def _peak(use: MemoryUse, curve: Curve, reduce: AllReduce | None) -> MemoryUse:
    """The worst moment, which may now be that of the sums: then gradients are all that there is beside variables."""
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
