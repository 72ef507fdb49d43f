"""Bytes of a buffer in memory: allocators round sizes up."""

from __future__ import annotations

from collections.abc import Mapping

# GPU: kMinAllocationSize in tsl/framework/bfc_allocator.h; the allocator rounds every request up to a
# multiple of it. CPU: Allocator::kAllocatorAlignment in tsl/framework/allocator.h; the next buffer starts at
# a multiple of it.
_STEP_BYTES: Mapping[str, int] = {"GPU": 256, "CPU": 64}


def allocated_bytes(size_bytes: int, device_type: str) -> int:
    """Bytes that a buffer of `size_bytes` takes on a `CPU` or `GPU`; an empty buffer takes none.

    Raises:
        ValueError: The size is negative, or the device type is neither of these.
    """
    step_bytes = _STEP_BYTES.get(device_type)
    if step_bytes is None:
        raise ValueError(f"unknown device type {device_type!r}; expected {' or '.join(sorted(_STEP_BYTES))}")
    if size_bytes < 0:
        raise ValueError(f"a buffer cannot have {size_bytes} bytes")
    return -(-size_bytes // step_bytes) * step_bytes
