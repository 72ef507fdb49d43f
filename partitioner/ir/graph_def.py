"""Walk a GraphDef by names alone: any object with its fields will do, so nothing here needs TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def producer(reference: str) -> str:
    """Name of the node that an input reference (`^a`, `a`, `a:1`) points to."""
    return reference.lstrip("^").split(":")[0]


def tensor_name(reference: str) -> str:
    """The tensor that an input reference (`a`, `a:1`) means, as TensorFlow names tensors: `a:0`, `a:1`."""
    return reference if ":" in reference else f"{reference}:0"


def reference(tensor: str) -> str:
    """How a node refers to a tensor: without the index of a first output."""
    return tensor.removesuffix(":0")


def prune(graph_def: Any, wanted: Iterable[str]) -> Any:
    """A GraphDef with the nodes that `wanted` need, data and control, in order; the library is kept."""
    nodes = {node.name: node for node in graph_def.node}
    live: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name not in live:
            live.add(name)
            stack.extend(producer(reference) for reference in nodes[name].input)
    pruned = type(graph_def)()
    pruned.versions.CopyFrom(graph_def.versions)
    pruned.library.CopyFrom(graph_def.library)
    pruned.node.extend(node for node in graph_def.node if node.name in live)
    return pruned
