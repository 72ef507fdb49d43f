"""What the devices of a plan hold, made up: a device with its largest tensors, and one with too much."""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.plan import DeviceMemory, LargeTensor, PlanDocument

MIB = 2**20


def with_memory(plan: PlanDocument) -> PlanDocument:
    """GPU:0 keeps activations of 4 microbatches; GPU:1 holds 100 MiB more than it may."""
    first = DeviceMemory(
        device=plan.devices[0].name,
        peak_seconds=1.5e-3,
        parameter_bytes=2 * MIB,
        slot_bytes=4 * MIB,
        state_bytes=0,
        gradient_bytes=2 * MIB,
        activation_bytes=92 * MIB,
        headroom_bytes=8 * 2**30 - 100 * MIB,
        reserved_bytes=5 * 2**30,
        largest=(
            LargeTensor(op="conv2d/Relu", layer="conv2d", size_bytes=64 * MIB, num_buffers=4),
            LargeTensor(op="max_pooling2d/MaxPool", layer="max_pooling2d", size_bytes=16 * MIB),
        ),
        over_time=tuple(MIB * size for size in (10, 20, 40, 60, 80, 100, 100, 50)),
    )
    second = replace(first, device=plan.devices[1].name, headroom_bytes=-100 * MIB, largest=(), over_time=())
    return replace(plan, memory=(first, second))
