"""The devices of replicas: as many groups as there are replicas, apart from each other or with devices in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

ReplicaGroups = tuple[tuple[int, ...], ...]
"""For each replica, the indices of its devices; the n-th ones of all replicas do the same, and may be the same."""


def data_parallel_degrees(groups: ReplicaGroups) -> tuple[int, ...]:
    """For each device of a replica, how many devices do the same."""
    return tuple(len(set(peers)) for peers in zip(*groups, strict=True))


def has_shared(groups: ReplicaGroups) -> bool:
    """Whether replicas share devices."""
    return any(degree < len(groups) for degree in data_parallel_degrees(groups))


def of_widths(sizes: Sequence[int]) -> ReplicaGroups:
    """As many replicas as the largest size: of n devices that do the same, replica r has that of index r mod n.

    Stages on unlike numbers of devices are those of PipeDream (Narayanan et al. 2019, "PipeDream: generalized pipeline
    parallelism for DNN training"); its planner writes `3-1` for what is `3,1` here.

    Args:
        sizes: Numbers of devices that do the same; each divides the largest.
    """
    starts = list(accumulate(sizes, initial=0))
    return tuple(
        tuple(start + replica % size for start, size in zip(starts, sizes, strict=False))
        for replica in range(max(sizes))
    )
