"""A device for every item, and which items are next to each other."""

from __future__ import annotations

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op
from partitioner.planner.model.coarsen import Coarsening

Assignment = tuple[int, ...]
"""Device index per item."""


def adjacent_items(costed: CostedGraph, coarsening: Coarsening) -> list[set[int]]:
    """For each item, the others that it exchanges a tensor with or waits for."""
    item_of = coarsening.item_of
    adjacent: list[set[int]] = [set() for _ in coarsening.items]
    for op in costed.graph.ops:
        for source in sources(costed, op):
            a, b = item_of[source], item_of[op.name]
            if a != b:
                adjacent[a].add(b)
                adjacent[b].add(a)
    return adjacent


def sources(costed: CostedGraph, op: Op) -> list[str]:
    """The ops that an op takes a tensor from or waits for."""
    graph = costed.graph
    return [*dict.fromkeys(graph.tensor[name].producer for name in op.inputs), *op.control_inputs]
