"""Items in the order of the forward pass."""

from __future__ import annotations

from typing import Any

import networkx as nx

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsening import Coarsening


def forward_order(costed: CostedGraph, coarsening: Coarsening) -> tuple[int, ...]:
    """Items in a topological order of their forward ops; items that wait for each other are next to each other.

    Items without forward ops follow the item with which they exchange most.
    """
    graph, item_of = costed.graph, coarsening.item_of
    position: dict[int, int] = {}
    items: nx.DiGraph = nx.DiGraph()
    traffic: dict[int, dict[int, int]] = {}
    for number, op in enumerate(graph.ops):
        item = item_of[op.name]
        is_forward = op.phase is Phase.FORWARD and op.type != "Const"
        if is_forward:
            position.setdefault(item, number)
            items.add_node(item)
        for name in op.inputs:
            source = item_of[maker := graph.tensor[name].producer]
            if source == item or graph.op[maker].type == "Const":
                continue
            if is_forward:
                items.add_edge(source, item)
            for a, b in ((source, item), (item, source)):
                sizes = traffic.setdefault(a, {})
                sizes[b] = sizes.get(b, 0) + graph.tensor[name].size_bytes
    groups: Any = nx.condensation(items)
    first: dict[Any, int] = {
        group: min(position[item] for item in data) for group, data in groups.nodes(data="members")
    }
    ordered: list[int] = []
    for group in nx.lexicographical_topological_sort(groups, key=lambda group: first[group]):
        ordered += sorted(groups.nodes[group]["members"], key=position.__getitem__)
    place = {item: (index, 0) for index, item in enumerate(ordered)}
    for item in range(len(coarsening.items)):
        if item not in position:
            near = {other: size for other, size in traffic.get(item, {}).items() if other in position}
            behind = max(near, key=lambda other: (near[other], -other)) if near else None
            place[item] = (place[behind][0] if behind is not None else len(ordered), 1 + item)
    return tuple(sorted(place, key=place.__getitem__))
