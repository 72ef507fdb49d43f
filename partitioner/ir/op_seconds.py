"""Seconds of each op of a graph on a device that nobody measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add

from cost_models.flops import op_cost
from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_seconds import fused_seconds, gpu_op_seconds
from cost_models.hardware import Device
from cost_models.roofline import op_seconds
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpCost, OpSpec
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import OpGraph


def seconds_of_ops(
    graph: OpGraph,
    costs: Sequence[OpCost],
    device: Device,
    fusion: Fusion | None = None,
    constants: GpuConstants = GPU,
    kernels: Kernels = ONEDNN,
    sums: Sequence[str] = (),
) -> tuple[float, ...]:
    """Seconds of each op, in graph order: the roofline, and of a GPU with known multiprocessors what it reaches of it.

    Args:
        graph: The graph.
        costs: The cost of each op.
        device: The device.
        fusion: The groups of ops that are compiled to one kernel; None where the step is not compiled.
        constants: Shares of peaks, of GPUs.
        kernels: The kernels that TensorFlow chooses.
        sums: Tensors that are added to running totals, which counts with the ops that make them.
    """
    seconds = _alone(graph, costs, device, fusion, constants, kernels)
    return tuple(map(add, seconds, _modelled_sums(graph, sums, device, fusion, constants))) if sums else seconds


def _alone(
    graph: OpGraph,
    costs: Sequence[OpCost],
    device: Device,
    fusion: Fusion | None,
    constants: GpuConstants,
    kernels: Kernels,
) -> tuple[float, ...]:
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
        lambda spec: gpu_op_seconds(
            spec, cost_of[id(spec)], device, compiled=compiled, constants=constants, kernels=kernels
        )
    )
    if fusion is None:
        return alone
    seconds = dict(zip((op.name for op in graph.ops), alone, strict=True)) | dict.fromkeys(fusion.known, 0.0)
    for group in fusion.groups:
        seconds.update(dict.fromkeys(group.ops, 0.0))
        seconds[group.timed] = fused_seconds(group.flops, group.moved_bytes, group.launches, device, constants)
    return tuple(seconds[op.name] for op in graph.ops)


def seconds_of_sums(
    graph: OpGraph, sums: Sequence[str], seconds: Callable[[OpSpec, OpCost], float]
) -> tuple[float, ...]:
    """Seconds to add what each op makes of `sums`, names of tensors, to running totals; by op, in graph order.

    Args:
        graph: The graph.
        sums: The tensors.
        seconds: Of an op, by its spec and its cost.
    """
    added: dict[str, float] = {}
    for name in sums:
        tensor = graph.tensor[name]
        add = OpSpec(type="AddV2", inputs=(tensor.spec, tensor.spec), outputs=(tensor.spec,))
        added[tensor.producer] = added.get(tensor.producer, 0.0) + seconds(add, op_cost(add))
    return tuple(added.get(op.name, 0.0) for op in graph.ops)


def _modelled_sums(
    graph: OpGraph, sums: Sequence[str], device: Device, fusion: Fusion | None, constants: GpuConstants
) -> tuple[float, ...]:
    """The same on a device that nobody measured.

    A kernel of a compiled step adds what it makes to the total: it reads the total as well, and writes it in place of
    the gradient. What a library computes is added by a kernel of its own.
    """
    adding = fusion.adding if fusion is not None and device.multiprocessors else frozenset[str]()
    within = [name for name in sums if graph.tensor[name].producer in adding]
    others = [name for name in sums if graph.tensor[name].producer not in adding]

    def apart(op: OpSpec, cost: OpCost) -> float:
        if device.multiprocessors:
            return gpu_op_seconds(op, cost, device, compiled=False, constants=constants)
        return op_seconds(cost, device, op.compute_dtype)

    def read_too(op: OpSpec, _cost: OpCost) -> float:
        return fused_seconds(0, op.outputs[0].size_bytes, 0, device, constants)

    return tuple(map(add, seconds_of_sums(graph, within, read_too), seconds_of_sums(graph, others, apart)))
