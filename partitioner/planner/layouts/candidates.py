"""Which devices may make up replicas: groups of equally many, and groups that share some."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.topology import Topology
from partitioner.ir.devices import short_name
from partitioner.planner.layouts.groups import ReplicaGroups, of_widths

# Replicas of more devices are not looked at.
MOST_PER_REPLICA = 8
# Of more devices, not every number is looked at.
MANY = 16
_MOST_SHARED = 2


def candidates(topology: Topology, *, most_replicas: int) -> Iterator[ReplicaGroups]:
    """ReplicaGroups of devices for replicas, several of them: the smallest groups first, of these the most.

    A group is of consecutive devices, within one host where it has as many. The numbers of replicas and of devices in
    each divide that of all devices or are powers of two; of more than a few devices, powers of two and as many as
    there are.
    """
    count = len(topology.devices)
    powers = {2**power for power in range(count.bit_length())}
    numbers = powers | ({n for n in range(1, count + 1) if count % n == 0} if count <= MANY else set())
    for size in sorted(n for n in numbers if n <= min(MOST_PER_REPLICA, count // 2)):
        runs = runs_of(topology, size)
        for number in sorted({*numbers, len(runs)}, reverse=True):
            if 2 <= number <= min(len(runs), most_replicas):
                yield runs[:number]


def sharing_candidates(topology: Topology, *, most_replicas: int) -> Iterator[ReplicaGroups]:
    """ReplicaGroups that use all devices, of which one or two are in all replicas; the others are in one each.

    Parameters on a shared device need no sum over devices: it pays where few layers have most of them.
    """
    num_devices = len(topology.devices)
    numbers = range(1, _MOST_SHARED + 1) if num_devices <= MANY else ()
    for num_shared in numbers:
        for num_own in numbers:
            count, left = divmod(num_devices - num_shared, num_own)
            if not left and 2 <= count <= most_replicas:
                yield of_widths([count] * num_own + [1] * num_shared)


def runs_of(topology: Topology, size: int) -> ReplicaGroups:
    """As many groups of consecutive devices as there are, within hosts where these have so many."""
    by_host: dict[int, list[int]] = {}
    for device in range(len(topology.devices)):
        by_host.setdefault(topology.host(device), []).append(device)
    parts = list(by_host.values())
    if max(map(len, parts)) < size:
        parts = [[device for part in parts for device in part]]
    return tuple(tuple(part[at : at + size]) for part in parts for at in range(0, len(part) - size + 1, size))


def unlike(topology: Topology, groups: ReplicaGroups) -> str:
    """Two devices that would do the same though they are not alike; empty if there are none."""
    for first, *peers in zip(*groups, strict=True):
        for peer in peers:
            one, other = topology.devices[first], topology.devices[peer]
            if (one.device, one.memory_bytes) != (other.device, other.memory_bytes):
                return f"{short_name(one.name)} and {short_name(other.name)}"
    return ""
