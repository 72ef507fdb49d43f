"""Bytes of a buffer in memory, as allocators round sizes up, and the bytes of a GPU that TensorFlow allocates from."""

from __future__ import annotations

from collections.abc import Mapping

# GPU: kMinAllocationSize in tsl/framework/bfc_allocator.h; the allocator rounds every request up to a
# multiple of it. CPU: Allocator::kAllocatorAlignment in tsl/framework/allocator.h; the next buffer starts at
# a multiple of it.
_STEP_BYTES: Mapping[str, int] = {"GPU": 256, "CPU": 64}


_MIB = 2**20
# What CUDA's context and the driver take of a GPU before TensorFlow asks how much is free. Fitted to the memory of the
# lines "Created device" that people published for a T4, L4, RTX 2080 Ti, RTX 3090, A100 80GB and H100: see
# `tests/benchmarks/gpu_memory.py`.
_CONTEXT_BYTES, _CONTEXT_SHARE = 330 * _MIB, 0.0105
# MinSystemMemory in gpu_device.cc of TensorFlow 2.21: MiB kept back by the first number of the compute capability, the
# last for all above; and of a GPU with less than 2 GiB free.
_KEPT_BACK_MIB: Mapping[int, int] = {6: 500, 7: 1050, 8: 1536, 9: 1800}
_SMALL_BYTES, _KEPT_BACK_OF_SMALL_MIB = 2**31, 225
# GPUs without CUDA, and those of which only the size is known.
_UNKNOWN_SHARE = 0.06
# Free memory between buffers that is too small for the next one: 0.1 to 1.3 % of the peak of seven models, by
# `tests/benchmarks/gpu_fragmentation.py`.
_FRAGMENTED_SHARE = 0.015


def gpu_bytes(memory_bytes: int, compute_capability: float) -> int:
    """Bytes that TensorFlow allocates from on a GPU that nothing else uses.

    Args:
        memory_bytes: All memory, as the driver reports it.
        compute_capability: Of CUDA; 0 if unknown, where a cautious share is taken off.
    """
    if not compute_capability:
        return int(memory_bytes * (1 - _UNKNOWN_SHARE))
    free = memory_bytes - _CONTEXT_BYTES - int(_CONTEXT_SHARE * memory_bytes)
    generation = min(max(int(compute_capability), min(_KEPT_BACK_MIB)), max(_KEPT_BACK_MIB))
    kept_back = _KEPT_BACK_OF_SMALL_MIB if free < _SMALL_BYTES else _KEPT_BACK_MIB[generation]
    return max(free - kept_back * _MIB, 0)


def unfragmented_bytes(allocator_bytes: int) -> int:
    """Bytes of buffers that an allocator with this memory can hold, however they come and go."""
    return int(allocator_bytes * (1 - _FRAGMENTED_SHARE))


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
