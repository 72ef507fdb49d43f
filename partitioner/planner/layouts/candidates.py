"""Which devices may make up replicas: groups of equally many, and groups that share some."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cost_models.topology import Topology
from partitioner.ir.devices import short_name
from partitioner.planner.layouts.groups import ReplicaGroups, of_widths
from partitioner.planner.pipeline.search_space import MANY

# The most devices of a replica that are tried.
MOST_PER_REPLICA = 8
_MOST_SHARED = 2
# Of a replica with devices of all hosts: what does not fit on fewer has half of 64.
_MOST_ACROSS_HOSTS = 32


def candidates(topology: Topology, *, most_replicas: int) -> Iterator[ReplicaGroups]:
    """Groups of devices for two or more replicas: the smallest groups first, and of these the most groups first.

    A group has consecutive devices, of one host where a host has enough. The number of replicas and the number of
    devices in each divide the number of all devices or are powers of two; with more than `MANY` devices, they are
    powers of two or the largest possible number. Of several hosts, there are also groups with devices of all of them,
    such that peers are on one host: gradients then need not leave it, and activations do.
    """
    count = len(topology.devices)
    powers = {2**power for power in range(count.bit_length())}
    numbers = powers | ({n for n in range(1, count + 1) if count % n == 0} if count <= MANY else set())
    for size in sorted(n for n in numbers if n <= min(MOST_PER_REPLICA, count // 2)):
        runs = runs_of(topology, size)
        for number in sorted({*numbers, len(runs)}, reverse=True):
            if 2 <= number <= min(len(runs), most_replicas):
                yield runs[:number]
    yield from _across_hosts(topology, most_replicas)


def _across_hosts(topology: Topology, most_replicas: int) -> Iterator[ReplicaGroups]:
    hosts = [topology.host(device) for device in range(len(topology.devices))]
    sizes = [len([*devices]) for _, devices in groupby(hosts)]
    if len(sizes) < 2 or len(sizes) > len(set(hosts)) or len(set(sizes)) > 1:
        return
    for number in range(min(sizes[0], most_replicas), 1, -1):
        if sizes[0] % number == 0 and len(hosts) // number <= _MOST_ACROSS_HOSTS:
            yield of_widths([number] * (len(hosts) // number))


def sharing_candidates(topology: Topology, *, most_replicas: int) -> Iterator[ReplicaGroups]:
    """Groups that use all devices: one or two devices are in all replicas, every other device is in one replica.

    Parameters on a shared device need no sum over devices. That pays where few layers have most of the parameters.
    """
    num_devices = len(topology.devices)
    numbers = range(1, _MOST_SHARED + 1) if num_devices <= MANY else ()
    for num_shared in numbers:
        for num_own in numbers:
            count, left = divmod(num_devices - num_shared, num_own)
            if not left and 2 <= count <= most_replicas:
                yield of_widths([count] * num_own + [1] * num_shared)


def runs_of(topology: Topology, size: int) -> ReplicaGroups:
    """All groups of `size` consecutive devices, within hosts where a host has enough devices."""
    by_host: dict[int, list[int]] = {}
    for device in range(len(topology.devices)):
        by_host.setdefault(topology.host(device), []).append(device)
    parts = list(by_host.values())
    if max(map(len, parts)) < size:
        parts = [[device for part in parts for device in part]]
    return tuple(tuple(part[at : at + size]) for part in parts for at in range(0, len(part) - size + 1, size))


def unlike(topology: Topology, groups: ReplicaGroups) -> str:
    """Names of two peers that are not alike; empty if all peers are."""
    for first, *peers in zip(*groups, strict=True):
        for peer in peers:
            a, b = topology.devices[first], topology.devices[peer]
            if (a.device, a.memory_bytes) != (b.device, b.memory_bytes):
                return f"{short_name(a.name)} and {short_name(b.name)}"
    return ""
