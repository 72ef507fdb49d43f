"""Bytes that ops of a graph need besides their inputs and outputs."""

from __future__ import annotations

from dataclasses import replace

from cost_models.memory import allocated_bytes
from cost_models.scratch import scratch_bytes, workspace_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName


def scratch_of_ops(costed: CostedGraph, device_type: str) -> dict[str, int]:
    """Scratch bytes of ops while they run, by op; ops without scratch memory are left out.

    Both gradients of an op can start when the gradient of its output is ready. Where a CPU runs several ops at a time
    with TensorFlow's own kernels, which take much memory for convolutions, each counts with the scratch of the other.
    """
    graph, kernels = costed.graph, costed.kernels
    if device_type == "GPU":
        gpus = [placed for placed in costed.topology.devices if DeviceName.parse(placed.name).type == device_type]
        oldest = min((placed.device.compute_capability for placed in gpus), default=0.0)
        kernels = replace(kernels, compute_capability=oldest)
    sizes = {
        op.name: size
        for op, spec in zip(graph.ops, graph.specs, strict=True)
        if (size := scratch_bytes(spec, device_type, kernels))
    }
    if device_type != "CPU" or kernels.onednn or kernels.inter_op_threads == 1:
        return sizes
    together: dict[str, int] = {}
    for name, size in sizes.items():
        source = graph.op[name].differentiates or name
        together[source] = together.get(source, 0) + size
    return {name: together[graph.op[name].differentiates or name] for name in sizes}


def sizes_of_tensors(costed: CostedGraph, device_type: str, *, workspaces: bool = False) -> dict[str, int]:
    """Bytes of every tensor's buffer; with `workspaces`, what ops leave for their gradients is part of their output.

    What exists inside of a compiled kernel alone takes none.
    """
    graph = costed.graph
    inner = costed.fusion.inner if costed.fusion is not None else frozenset[str]()
    sizes = {
        tensor.name: 0 if tensor.name in inner else allocated_bytes(tensor.size_bytes, device_type)
        for tensor in graph.tensors
    }
    if workspaces:
        for op, spec in zip(graph.ops, graph.specs, strict=True):
            if extra := workspace_bytes(spec, device_type, costed.kernels):
                sizes[op.outputs[0]] += allocated_bytes(extra, device_type)
    return sizes
