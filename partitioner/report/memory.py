"""Memory of devices as text: bytes by purpose, the largest tensors at the peak, and a curve over the step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from partitioner.ir.devices import short_name, short_ranges
from partitioner.ir.plan import DeviceMemory, LargeTensor, PlanDocument
from partitioner.ir.units import format_bytes, format_seconds

PURPOSES = ("parameters", "slots", "other state", "gradients", "activations")
_BARS = "▁▂▃▄▅▆▇█"


def purposes(memory: DeviceMemory) -> tuple[int, ...]:
    """Bytes at the peak for each of `PURPOSES`."""
    return (
        memory.parameter_bytes,
        memory.slot_bytes,
        memory.state_bytes,
        memory.gradient_bytes,
        memory.activation_bytes,
    )


def headroom(memory: DeviceMemory) -> str:
    """Bytes below the limit at the peak, or above it."""
    left = memory.headroom_bytes
    return format_bytes(left) if left >= 0 else f"{format_bytes(-left)} too much"


def largest_lines(plan: PlanDocument) -> Iterable[str]:
    """The time of each device's peak and its largest tensors; one line for devices with the same text."""
    devices: dict[str, list[str]] = {}
    for memory in plan.memory:
        if memory.largest:
            sentence = f"at {format_seconds(memory.peak_seconds)}: {', '.join(map(_named, memory.largest))}"
            devices.setdefault(sentence, []).append(memory.device)
    for sentence, names in devices.items():
        yield f"{', '.join(short_ranges(names))} {sentence}"


def _named(tensor: LargeTensor) -> str:
    several = f" in {tensor.num_buffers} microbatches" if tensor.num_buffers > 1 else ""
    return f"{tensor.op} {format_bytes(tensor.size_bytes)}{several}"


def curves(plan: PlanDocument, *, num_columns: int) -> tuple[tuple[str, str], ...]:
    """For each device, a bar for each part of the step: the most bytes held then; a full bar is the peak."""
    bars = []
    for memory in plan.memory:
        parts = memory.over_time
        if parts and memory.peak_bytes:
            columns = min(num_columns, len(parts))
            edges = [index * len(parts) // columns for index in range(columns + 1)]
            most = [max(parts[start:end]) for start, end in pairwise(edges)]
            bars.append((short_name(memory.device), "".join(_bar(size / memory.peak_bytes) for size in most)))
    return tuple(bars)


def _bar(share: float) -> str:
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def reserved_line(plan: PlanDocument) -> str:
    """The memory of devices that plans may not use; empty where there is none."""
    reserved = {memory.device: memory.reserved_bytes for memory in plan.memory if memory.reserved_bytes > 0}
    if not reserved:
        return ""
    sizes = " or ".join(dict.fromkeys(map(format_bytes, reserved.values())))
    return f"{sizes} of a GPU is not to be used: TensorFlow leaves it to the driver and to libraries"
