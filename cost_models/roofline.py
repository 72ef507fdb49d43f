"""Seconds of an op: the slower of computing and moving bytes, plus the cost of launching it."""

from __future__ import annotations

from cost_models.hardware import Device
from cost_models.specs import OpCost


def op_seconds(cost: OpCost, device: Device, dtype: str) -> float:
    """Seconds of an execution of an op whose arithmetic is on `dtype`.

    max(FLOPs / peak, bytes / bandwidth) + launch overhead: the roofline of Williams, Waterman and Patterson,
    "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009. An op
    with neither FLOPs nor bytes passes on a buffer without starting a kernel and takes no time. An op that runs
    others takes the time of all of them.

    Raises:
        ValueError: No such dtype.
    """
    if cost.flops == 0 and cost.moved_bytes == 0:
        return 0.0
    if cost.parts:
        return sum(part.times * op_seconds(part.cost, device, part.dtype) for part in cost.parts)
    compute_seconds = cost.flops / device.peak_flops_for(dtype)
    memory_seconds = cost.moved_bytes / device.memory_bandwidth_bytes_per_second
    return max(compute_seconds, memory_seconds) + device.launch_overhead_seconds
