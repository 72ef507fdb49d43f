"""The plan of one replica, extended to all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from partitioner.ir.devices import short_name
from partitioner.ir.plan import DeviceInfo, PlanDocument, Stage, Strategy
from partitioner.ir.schedule import Send
from partitioner.planner.layouts.groups import ReplicaGroups, data_parallel_degrees
from partitioner.planner.layouts.result import SearchResult


def replicated(
    plan: PlanDocument, result: SearchResult, infos: Sequence[DeviceInfo], groups: ReplicaGroups
) -> PlanDocument:
    """The plan of the first replica, or of some of the devices, extended to all.

    Args:
        plan: As `plan_document` gives it.
        result: The search result of the plan.
        infos: All devices.
        groups: The devices of each replica.
    """
    names = [[infos[index].name for index in group] for group in groups]
    peers = [dict(zip(names[0], group, strict=True)) for group in names]
    listed = {info.name for info in infos}
    degrees = dict(zip(names[0], data_parallel_degrees(groups), strict=True))
    return replace(
        plan,
        devices=(*infos, *(host for host in plan.devices if host.name not in listed)),
        strategy=_strategy(groups) if len(groups) > 1 else plan.strategy,
        num_replicas=len(groups),
        stages=tuple(
            replace(stage, replica=replica, device=peers[replica][stage.device])
            for replica in range(len(groups))
            for stage in _with_all_sends(plan.stages, result, degrees, len(groups))
            if replica < degrees[stage.device]
        ),
        predicted=replace(
            plan.predicted,
            peak_bytes={of[name]: size for of in peers for name, size in plan.predicted.peak_bytes.items()},
        ),
        memory=tuple(
            replace(memory, device=of[memory.device])
            for replica, of in enumerate(peers)
            for memory in plan.memory
            if replica < degrees[memory.device]
        ),
        notes=(*plan.notes, *_on_shared(plan.stages, degrees, len(groups))),
    )


def _on_shared(stages: Sequence[Stage], degrees: Mapping[str, int], count: int) -> Iterator[str]:
    """Notes on devices that work for several replicas, which the timeline of the first replica does not show."""
    for device in dict.fromkeys(stage.device for stage in stages):
        if (times := count // degrees[device]) > 1:
            yield (
                f"{short_name(device)} works for {times} replicas at a time: what it does for one of them is taken to "
                f"be {times} times as long"
            )


def _strategy(groups: ReplicaGroups) -> Strategy:
    return Strategy.MIRRORED if len(groups[0]) == 1 else Strategy.MIXED


def _with_all_sends(
    stages: Sequence[Stage], result: SearchResult, degrees: Mapping[str, int], count: int
) -> list[Stage]:
    """The stages of the first replica; bytes sent include those of replicas that share the device.

    Bytes from a device to its peers count for its first stage.
    """
    sent = Counter[str]()
    for exchange in result.exchanges:
        for device in exchange.devices:
            sent[device] += (len(exchange.devices) - 1) * exchange.bytes_per_pair
    return [
        replace(stage, send_bytes=stage.send_bytes * (count // degrees[stage.device]) + sent.pop(stage.device, 0))
        for stage in stages
    ]


def sends_of_all(result: SearchResult, infos: Sequence[DeviceInfo], groups: ReplicaGroups) -> tuple[Send, ...]:
    """Every tensor that crosses from one device to another in any replica, or between them."""
    names = [[infos[index].name for index in group] for group in groups]
    peers = [dict(zip(names[0], group, strict=True)) for group in names]
    own = [replace(s, source=of[s.source], target=of[s.target]) for of in peers for s in result.schedule.sends]
    return (*own, *(send for exchange in result.exchanges for send in exchange.sends()))
