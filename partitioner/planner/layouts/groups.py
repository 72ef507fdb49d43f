"""The devices of replicas: one group for each replica; groups may share devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from cost_models.topology import Topology

ReplicaGroups = tuple[tuple[int, ...], ...]
"""For each replica, the indices of its devices. The n-th devices of all replicas are peers: they do the same."""


def data_parallel_degrees(groups: ReplicaGroups) -> tuple[int, ...]:
    """For each device of a replica, the number of its peers, itself included."""
    return tuple(len(set(peers)) for peers in zip(*groups, strict=True))


def has_shared(groups: ReplicaGroups) -> bool:
    """Whether replicas share devices."""
    return any(degree < len(groups) for degree in data_parallel_degrees(groups))


def crossing_uplinks(groups: ReplicaGroups, machines: Topology) -> dict[str, int]:
    """For each uplink, by name, the replicas that have devices on both of its sides: all send over it alike."""
    sides = {uplink.name: [uplink.devices.intersection(group) for group in groups] for uplink in machines.uplinks}
    return {
        name: sum(0 < len(inside) < len(set(group)) for inside, group in zip(of_groups, groups, strict=True))
        for name, of_groups in sides.items()
    }


def of_widths(sizes: Sequence[int]) -> ReplicaGroups:
    """As many replicas as the largest size; of n peers, replica r has the peer of index r mod n.

    Stages on unlike numbers of devices are those of PipeDream (Narayanan et al. 2019, "PipeDream: generalized pipeline
    parallelism for DNN training"); its planner writes `3-1` for what is `3,1` here.

    Args:
        sizes: Numbers of peers; each divides the largest.
    """
    starts = list(accumulate(sizes, initial=0))
    return tuple(
        tuple(start + replica % size for start, size in zip(starts, sizes, strict=False))
        for replica in range(max(sizes))
    )
