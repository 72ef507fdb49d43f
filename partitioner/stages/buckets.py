"""Gradients that replicas sum together: few large messages in place of one for each gradient."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

BUCKET_BYTES = 32 * 2**20
"""Large enough that latency does not matter, and small enough that the first sums begin while backwards run.

PyTorch's default is 25 MiB (S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2).
"""

Name = TypeVar("Name")


def buckets(tensors: Iterable[tuple[Name, Hashable, int]]) -> list[list[Name]]:
    """Tensors in groups of at most `BUCKET_BYTES`, unless one alone is larger, in the order of their first ones.

    Each goes into the first group that has room for it, so that no two groups would fit into one.

    Args:
        tensors: Name, kind and bytes of each. Only tensors of a kind share a bucket; those of the kind None share none.
    """
    made: list[list[Name]] = []
    held: dict[Hashable, list[tuple[list[Name], int]]] = {}
    for name, kind, size in tensors:
        of_kind = held.setdefault(kind, [])
        place = next((place for place, (_, taken) in enumerate(of_kind) if taken + size <= BUCKET_BYTES), None)
        if kind is None or place is None:
            made.append([name])
            of_kind.append((made[-1], size))
            continue
        bucket, taken = of_kind[place]
        bucket.append(name)
        of_kind[place] = bucket, taken + size
    return made
