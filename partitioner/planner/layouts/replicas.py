"""Mirrored replicas: which devices make one, and the plan of one written out for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.topology import Topology
from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Baseline, DeviceInfo, Stage, Strategy
from partitioner.ir.schedule import Send
from partitioner.planner.layouts.groups import ReplicaGroups, data_parallel_degrees, of_widths
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.placement.baselines import single_device
from partitioner.planner.placement.evaluator import PlacementEvaluator
from partitioner.spelling import argument, arguments


def replica_groups(
    strategy: Strategy,
    replicas: int | str | Sequence[int],
    topology: Topology,
    *,
    batch_size: int,
    microbatches: int | str,
) -> ReplicaGroups:
    """The devices of each replica: consecutive ones, so that stages exchange tensors over the shortest links.

    Args:
        strategy: `mirrored` has a device per replica; `mixed` needs their number; of the others only `auto` takes one.
        replicas: How many, or `auto`; or sizes as in `of_widths`.
        topology: The devices.
        batch_size: Rows of a batch.
        microbatches: Of a replica, or `auto`.

    Raises:
        UsageError: The number does not go with the strategy, the devices or the rows of the batch, or devices that are
            to do the same are not alike.
    """
    num_devices = len(topology.devices)
    sizes = () if isinstance(replicas, (int, str)) else tuple(replicas)
    if sizes:
        _check_sizes(strategy, sizes, num_devices)
        if len(set(sizes)) == 1:
            replicas, sizes = sizes[0], ()
    count = max(sizes) if sizes else _count(strategy, replicas, num_devices)
    if num_devices % count and not sizes:
        fitting = [argument("replicas", n) for n in range(2, num_devices + 1) if num_devices % n == 0]
        raise UsageError(
            f"{num_devices} devices cannot be cut into {count} replicas of equally many devices",
            help=" or ".join(fitting),
        )
    parts = count * (microbatches if isinstance(microbatches, int) else 1)
    if count > 1 and parts > batch_size:
        cut = f"{count} replicas" + (f" with {microbatches} microbatches each" if parts > count else "")
        raise UsageError(
            f"{cut} of a batch of {batch_size} rows: some would have none",
            help=f"at least {argument('batch_size', parts)}",
        )
    size = num_devices // count
    even = tuple(tuple(range(start, start + size)) for start in range(0, size * count, size))
    groups = of_widths(sizes) if sizes else even
    _refuse_unequal(topology, groups)
    return groups


def _check_sizes(strategy: Strategy, sizes: Sequence[int], num_devices: int) -> None:
    text = ",".join(map(str, sizes))
    if strategy not in (Strategy.AUTO, Strategy.MIXED):
        raise UsageError(
            f"the strategy {strategy} does not go with replicas {text}", help=argument("strategy", "mixed")
        )
    if any(size < 1 for size in sizes):
        raise UsageError(f"replicas {text}: every number is at least 1")
    if sum(sizes) != num_devices:
        raise UsageError(
            f"replicas {text} are on {sum(sizes)} devices, and {num_devices} are given",
            help="name as many devices as the numbers add up to",
        )
    if odd := [size for size in sizes if max(sizes) % size]:
        raise UsageError(
            f"replicas {text}: {max(sizes)} replicas cannot share {odd[0]} devices evenly",
            help="numbers that divide the largest",
        )


def _count(strategy: Strategy, replicas: Any, num_devices: int) -> int:
    if replicas == "auto":
        if strategy is Strategy.MIXED:
            raise UsageError(
                "the strategy is mixed: how many replicas?", help=f"e.g. {arguments(strategy='mixed', replicas=2)}"
            )
        return num_devices if strategy is Strategy.MIRRORED else 1
    if not isinstance(replicas, int) or replicas < 1:
        raise UsageError(f"replicas is {replicas!r}, expected 'auto' or a whole number of at least 1")
    if strategy in (Strategy.SINGLE, Strategy.LAYER_SPLIT) and replicas > 1:
        raise UsageError(
            f"the strategy {strategy} has one replica, not {replicas}",
            help=arguments(strategy="mixed", replicas=replicas),
        )
    if strategy is Strategy.MIRRORED and replicas != num_devices:
        raise UsageError(
            f"mirrored has a replica on each of the {num_devices} devices, not {replicas} replicas",
            help=f"name {replicas} devices, or {arguments(strategy='mixed', replicas=replicas)}",
        )
    return replicas


def _refuse_unequal(topology: Topology, groups: ReplicaGroups) -> None:
    for peers in zip(*groups, strict=True):
        placed = [topology.devices[index] for index in peers]
        names = [short_name(one.name) for one in placed]
        if any(one.device != placed[0].device for one in placed):
            raise UsageError(
                f"{' and '.join(names)} would run the same stage of different replicas, but are not alike",
                notes=[f"{name}: {one.device.name}" for name, one in zip(names, placed, strict=True)],
                help="order the devices so that those of each replica follow each other",
            )
        if len(sizes := {one.memory_bytes for one in placed}) > 1:
            raise UsageError(
                f"{' and '.join(names)} would hold the same stage of different replicas, but not as much memory",
                notes=[f"{name}: {one.memory_bytes / 2**30:.2f} GiB" for name, one in zip(names, placed, strict=True)],
                help=f"{argument('memory_limit', min(sizes))} makes all of them equal",
            )


def within_replica(strategy: Strategy, groups: ReplicaGroups) -> Strategy:
    """The strategy by which one replica is planned on its devices."""
    if strategy in (Strategy.MIRRORED, Strategy.MIXED) or len(groups) > 1:
        return Strategy.SINGLE if len(groups[0]) == 1 else Strategy.LAYER_SPLIT
    return strategy


def single_device_baselines(costed: CostedGraph) -> tuple[Baseline, ...]:
    """The whole batch on each of the devices alone."""
    coarsening = coarsen(costed)
    evaluator = PlacementEvaluator(costed, coarsening)
    alone = [evaluator(single_device(coarsening, index)) for index in range(len(costed.topology.devices))]
    return tuple(
        Baseline(
            name=f"single-device {short_name(placed.name)}", step_seconds=evaluation.step_seconds, fits=evaluation.fits
        )
        for placed, evaluation in zip(costed.topology.devices, alone, strict=True)
    )


def replicated(
    fields: dict[str, Any], found: SearchResult, infos: Sequence[DeviceInfo], groups: ReplicaGroups
) -> dict[str, Any]:
    """The fields of a plan of the first replica, or of some of the devices, for all of them.

    Args:
        fields: As `plan_fields` gives them.
        found: What they tell of.
        infos: All devices.
        groups: The devices of each replica.
    """
    names = [[infos[index].name for index in group] for group in groups]
    names_of = [dict(zip(names[0], group, strict=True)) for group in names]
    hosts = [info for info in fields["devices"] if info.name not in names[0]]
    predicted = fields["predicted"]
    sizes = dict(zip(names[0], data_parallel_degrees(groups), strict=True))
    return fields | {
        "devices": (*infos, *(host for host in hosts if host.name not in {info.name for info in infos})),
        "strategy": _strategy(groups) if len(groups) > 1 else fields["strategy"],
        "num_replicas": len(groups),
        "stages": tuple(
            replace(stage, replica=replica, device=names_of[replica][stage.device])
            for replica in range(len(groups))
            for stage in _with_all_sends(fields["stages"], found, sizes, len(groups))
            if replica < sizes[stage.device]
        ),
        "predicted": replace(
            predicted,
            peak_bytes={of[name]: size for of in names_of for name, size in predicted.peak_bytes.items()},
        ),
        "memory": tuple(
            replace(memory, device=of[memory.device])
            for replica, of in enumerate(names_of)
            for memory in fields["memory"]
            if replica < sizes[memory.device]
        ),
        "notes": (*fields["notes"], *_on_shared(fields["stages"], sizes, len(groups))),
    }


def _on_shared(stages: Sequence[Stage], sizes: Mapping[str, int], count: int) -> Iterator[str]:
    """What the timeline of the first replica does not show of devices that others work on too."""
    for device in dict.fromkeys(stage.device for stage in stages):
        if (times := count // sizes[device]) > 1:
            yield (
                f"{short_name(device)} works for {times} replicas at a time: what it does for one of them is taken to "
                f"be {times} times as long"
            )


def _strategy(groups: ReplicaGroups) -> Strategy:
    return Strategy.MIRRORED if len(groups[0]) == 1 else Strategy.MIXED


def _with_all_sends(stages: Sequence[Stage], found: SearchResult, sizes: Mapping[str, int], count: int) -> list[Stage]:
    """The stages of the first replica, with what they send for others that share their devices.

    What a device sends to its peers counts for its first stage.
    """
    sent = Counter[str]()
    for exchange in found.exchanges:
        for device in exchange.devices:
            sent[device] += (len(exchange.devices) - 1) * exchange.bytes_per_pair
    return [
        replace(stage, send_bytes=stage.send_bytes * (count // sizes[stage.device]) + sent.pop(stage.device, 0))
        for stage in stages
    ]


def sends_of_all(found: SearchResult, infos: Sequence[DeviceInfo], groups: ReplicaGroups) -> tuple[Send, ...]:
    """Every tensor that crosses from one device to another in any replica, or between them."""
    names = [[infos[index].name for index in group] for group in groups]
    names_of = [dict(zip(names[0], group, strict=True)) for group in names]
    own = [replace(s, source=of[s.source], target=of[s.target]) for of in names_of for s in found.schedule.sends]
    return (*own, *(send for exchange in found.exchanges for send in exchange.sends()))
