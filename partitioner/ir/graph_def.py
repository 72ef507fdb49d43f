"""Walk a GraphDef by names. Any object with its fields will do, so nothing here needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import networkx as nx


def producer(reference: str) -> str:
    """Name of the node that an input reference (`^a`, `a`, `a:1`) points to."""
    return reference.lstrip("^").split(":")[0]


def tensor_name(reference: str) -> str:
    """The tensor that an input reference (`a`, `a:1`) means, as TensorFlow names tensors: `a:0`, `a:1`."""
    return reference if ":" in reference else f"{reference}:0"


def reference(tensor: str) -> str:
    """How a node refers to a tensor: without the index of a first output."""
    return tensor.removesuffix(":0")


def resolved(reference: str, through: Mapping[str, str]) -> str:
    """Follow a reference through the replacements in `through`."""
    while reference in through:
        reference = through[reference]
    return reference


def needed(nodes: Mapping[str, Any], wanted: Iterable[str], given: Container[str] = ()) -> set[str]:
    """Names of the nodes that `wanted` need, data and control, themselves included; what is `given` needs no node."""
    live: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name not in live and name not in given:
            live.add(name)
            stack.extend(producer(reference) for reference in nodes[name].input)
    return live


def in_run_order(nodes: Iterable[Any], needs: Callable[[Any], Iterable[str]]) -> list[Any]:
    """Nodes in a topological order close to the given order: a loop's gradient adds inputs to the loop later.

    Args:
        nodes: With names.
        needs: Names of the nodes that a node needs.
    """
    place: dict[str, int] = {}
    ordered = list(nodes)
    for index, node in enumerate(ordered):
        if not all(name in place for name in needs(node)):
            break
        place[node.name] = index
    else:
        return ordered
    place = {node.name: index for index, node in enumerate(ordered)}
    graph = nx.DiGraph()
    graph.add_nodes_from(place)
    graph.add_edges_from((name, node.name) for node in ordered for name in needs(node))
    return [ordered[place[name]] for name in nx.lexicographical_topological_sort(graph, key=place.__getitem__)]


def prune(graph_def: Any, wanted: Iterable[str]) -> Any:
    """A GraphDef with the nodes that `wanted` need, data and control, in order; the library is kept."""
    live = needed({node.name: node for node in graph_def.node}, wanted)
    pruned = type(graph_def)()
    pruned.versions.CopyFrom(graph_def.versions)
    pruned.library.CopyFrom(graph_def.library)
    pruned.node.extend(node for node in graph_def.node if node.name in live)
    return pruned
