"""Seconds of each op of a graph on a device that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_seconds import fused_seconds, gpu_op_seconds
from cost_models.hardware import Device
from cost_models.roofline import op_seconds
from cost_models.specs import OpCost
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import OpGraph


def seconds_of_ops(
    graph: OpGraph,
    costs: Sequence[OpCost],
    device: Device,
    fusion: Fusion | None = None,
    constants: GpuConstants = GPU,
) -> tuple[float, ...]:
    """Seconds of each op, in graph order: the roofline, and of a GPU with known multiprocessors what it reaches of it.

    Args:
        graph: The graph.
        costs: The cost of each op.
        device: The device.
        fusion: The groups of ops that are compiled to one kernel; None where the step is not compiled.
        constants: Shares of peaks, of GPUs.
    """
    if not device.multiprocessors:
        distinct: dict[tuple[OpCost, str], float] = {}
        keys = list(zip(costs, graph.of_specs(lambda spec: spec.compute_dtype), strict=True))
        for cost, dtype in keys:
            if (cost, dtype) not in distinct:
                distinct[cost, dtype] = op_seconds(cost, device, dtype)
        return tuple(distinct[key] for key in keys)
    cost_of = {id(spec): cost for spec, cost in zip(graph.specs, costs, strict=True)}
    compiled = fusion is not None
    alone = graph.of_specs(
        lambda spec: gpu_op_seconds(spec, cost_of[id(spec)], device, compiled=compiled, constants=constants)
    )
    if fusion is None:
        return alone
    seconds = dict(zip((op.name for op in graph.ops), alone, strict=True))
    for group in fusion.groups:
        seconds.update(dict.fromkeys(group.ops, 0.0))
        seconds[group.timed] = fused_seconds(group.flops, group.moved_bytes, group.launches, device, constants)
    return tuple(seconds[op.name] for op in graph.ops)
