"""Bytes that ops of a graph take besides their inputs and outputs."""

from __future__ import annotations

from cost_models.memory import allocated_bytes
from cost_models.scratch import scratch_bytes, workspace_bytes
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.costs import op_spec


def scratch_of_ops(graph: OpGraph, device_type: str) -> dict[str, int]:
    """While they run, by op; those that take nothing are left out."""
    return {op.name: size for op in graph.ops if (size := scratch_bytes(op_spec(graph, op), device_type))}


def sizes_of_tensors(graph: OpGraph, device_type: str, *, workspaces: bool = False) -> dict[str, int]:
    """Bytes of every tensor's buffer; with `workspaces`, what ops leave for their gradients is part of their output."""
    sizes = {tensor.name: allocated_bytes(tensor.size_bytes, device_type) for tensor in graph.tensors}
    if workspaces:
        for op in graph.ops:
            if extra := workspace_bytes(op_spec(graph, op), device_type):
                sizes[op.outputs[0]] += allocated_bytes(extra, device_type)
    return sizes
