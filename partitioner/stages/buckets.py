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

    Args:
        tensors: Name, kind and bytes of each. Only tensors of a kind share a bucket; those of the kind None share none.
    """
    made: list[list[Name]] = []
    is_open: dict[Hashable, tuple[list[Name], int]] = {}
    for name, kind, size in tensors:
        bucket, held = is_open.get(kind, ([], 0))
        if kind is None or not bucket or held + size > BUCKET_BYTES:
            bucket, held = [], 0
            made.append(bucket)
        bucket.append(name)
        is_open[kind] = bucket, held + size
    return made
