"""What a device holds: bytes by what they are for, the tensors that take most of them, and the most over time."""

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
    """What a device holds `seconds` after the start of a step."""
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
    """The tensors that take most, at most five, of buffers given as tensor and bytes; a tensor may have several."""
    sizes: dict[str, list[int]] = {}
    for tensor, size_bytes in buffers:
        if size_bytes > 0:
            found = sizes.setdefault(tensor, [0, 0])
            found[0] += size_bytes
            found[1] += 1
    most = heapq.nsmallest(_MOST_NAMED, sizes.items(), key=lambda item: (-item[1][0], item[0]))
    return [HeldTensor(tensor=tensor, size_bytes=size, num_buffers=count) for tensor, (size, count) in most]


def most_over_time(held: Sequence[tuple[float, int]], seconds: float, *, num_parts: int) -> tuple[int, ...]:
    """The most bytes held in each of equal parts of some time.

    Args:
        held: Seconds from its start, and bytes held from then on; ascending.
        seconds: How long it is.
        num_parts: Numbers to return; none where nothing is known.
    """
    if not held or seconds <= 0:
        return ()
    most = [0] * num_parts
    parts = [min(int(start / seconds * num_parts), num_parts - 1) for start, _ in held]
    for (_, size), first, last in zip(held, parts, [*parts[1:], num_parts - 1], strict=True):
        for part in range(first, last + 1):
            most[part] = max(most[part], size)
    return tuple(most)
