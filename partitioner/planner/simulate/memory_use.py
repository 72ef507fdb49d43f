"""Memory of a device: bytes by purpose, the largest tensors, and the peak over time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from partitioner.ir.op_graph import VariableKind
from partitioner.ir.schedule import HeldTensor, MemoryUse

_MOST_NAMED = 5


def memory_use(
    variables: Mapping[VariableKind, int],
    activation_bytes: int,
    gradient_bytes: int,
    *,
    seconds: float = 0.0,
    largest: Iterable[HeldTensor] = (),
) -> MemoryUse:
    """Memory of a device `seconds` after the start of a step."""
    return MemoryUse(
        parameter_bytes=variables[VariableKind.PARAMETER],
        slot_bytes=variables[VariableKind.SLOT],
        state_bytes=variables[VariableKind.STATE],
        gradient_bytes=gradient_bytes,
        activation_bytes=activation_bytes,
        seconds=seconds,
        largest=tuple(largest),
    )


def largest_tensors(buffers: Iterable[tuple[str, int]]) -> list[HeldTensor]:
    """The largest tensors, at most five, of buffers given as (tensor, bytes); a tensor may have several buffers."""
    sizes: dict[str, list[int]] = {}
    for tensor, size_bytes in buffers:
        if size_bytes > 0:
            entry = sizes.setdefault(tensor, [0, 0])
            entry[0] += size_bytes
            entry[1] += 1
    most = heapq.nsmallest(_MOST_NAMED, sizes.items(), key=lambda item: (-item[1][0], item[0]))
    return [HeldTensor(tensor=tensor, size_bytes=size, num_buffers=count) for tensor, (size, count) in most]


def most_over_time(held: Sequence[tuple[float, int]], seconds: float, *, num_parts: int) -> tuple[int, ...]:
    """The peak bytes in each of equal parts of a time span.

    Args:
        held: Seconds from the start of the span, and bytes held from then on; ascending.
        seconds: Length of the span.
        num_parts: Numbers to return; none where `held` is empty.
    """
    if not held or seconds <= 0:
        return ()
    most = [0] * num_parts
    parts = [min(int(start / seconds * num_parts), num_parts - 1) for start, _ in held]
    for (_, size), first, last in zip(held, parts, [*parts[1:], num_parts - 1], strict=True):
        for part in range(first, last + 1):
            most[part] = max(most[part], size)
    return tuple(most)
