"""Which devices make a replica, and the strategy by which one replica is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.topology import Topology
from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Baseline, Strategy
from partitioner.planner.layouts.groups import ReplicaGroups, of_widths
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.spelling import argument, arguments


def replica_groups(
    strategy: Strategy,
    replicas: int | str | Sequence[int],
    topology: Topology,
    *,
    batch_size: int,
    microbatches: int | str,
) -> ReplicaGroups:
    """The devices of each replica: consecutive devices, so that stages exchange tensors over the shortest links.

    Where numbers of peers are given, these are consecutive.

    Args:
        strategy: `mirrored` has a device per replica; `mixed` needs their number, and `auto` takes it.
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
        names = [short_name(peer.name) for peer in placed]
        if any(peer.device != placed[0].device for peer in placed):
            raise UsageError(
                f"{' and '.join(names)} would run the same stage of different replicas, but are not alike",
                notes=[f"{name}: {peer.device.name}" for name, peer in zip(names, placed, strict=True)],
                help="order the devices so that those of each replica follow each other",
            )
        if len(sizes := {peer.memory_bytes for peer in placed}) > 1:
            raise UsageError(
                f"{' and '.join(names)} would hold the same stage of different replicas, but not as much memory",
                notes=[
                    f"{name}: {peer.memory_bytes / 2**30:.2f} GiB" for name, peer in zip(names, placed, strict=True)
                ],
                help=f"{argument('memory_limit', min(sizes))} makes all of them equal",
            )


def within_replica(strategy: Strategy, groups: ReplicaGroups) -> Strategy:
    """The strategy by which one replica is planned on its devices."""
    if strategy in (Strategy.MIRRORED, Strategy.MIXED) or len(groups) > 1:
        return Strategy.SINGLE if len(groups[0]) == 1 else Strategy.LAYER_SPLIT
    return strategy


def single_device_baselines(costed: CostedGraph) -> tuple[Baseline, ...]:
    """The whole batch on each of the devices alone."""
    steps = [simulate(costed, dict.fromkeys(costed.graph.op, index)) for index in range(len(costed.topology.devices))]
    return tuple(
        Baseline(
            name=f"single-device {short_name(placed.name)}",
            step_seconds=step.step_seconds,
            fits=step.peak[placed.name].total_bytes <= placed.memory_bytes,
        )
        for placed, step in zip(costed.topology.devices, steps, strict=True)
    )
