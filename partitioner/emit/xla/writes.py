"""Let variables be written only once everything that may fail has ended, so that a failed step changes nothing.

A compiled program does not fail half-way: its writes come at its end. What is not compiled may fail, on any device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cost_models.formulas_movement import FREE_OP_TYPES
from partitioner.emit.xla.clusters import is_constant
from partitioner.ir.graph_def import in_run_order, producer

_GATE = "before_writes"
_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign")


def with_held_writes(graph_def: Any, compiled: Collection[str]) -> Any:
    """The graph in which every write waits for what is not compiled; the same object where nothing has to wait.

    Args:
        graph_def: A placed GraphDef.
        compiled: Names of the nodes that are compiled.
    """
    nodes = {node.name: node for node in graph_def.node}
    writes = [name for name, node in nodes.items() if node.op.startswith(_WRITES)]
    if _GATE in nodes or not writes:
        return graph_def
    after = _after(graph_def, writes)
    may_fail = [
        node
        for name, node in nodes.items()
        if node.device and name not in compiled and name not in after and _may_fail(node)
    ]
    if not may_fail:
        return graph_def
    held = type(graph_def)()
    held.CopyFrom(graph_def)
    held.node.add(name=_GATE, op="NoOp", device=may_fail[0].device, input=[f"^{node.name}" for node in may_fail])
    for node in held.node:
        if node.name in set(writes):
            node.input.append(f"^{_GATE}")
    return held


def _may_fail(node: Any) -> bool:
    return node.op not in FREE_OP_TYPES and not is_constant(node)


def _after(graph_def: Any, writes: Collection[str]) -> set[str]:
    """The writes, and the nodes that need one of them."""
    names = {node.name for node in graph_def.node}
    found = set(writes)
    for node in in_run_order(graph_def.node, lambda node: [p for r in node.input if (p := producer(r)) in names]):
        if any(producer(read) in found for read in node.input):
            found.add(node.name)
    return found
