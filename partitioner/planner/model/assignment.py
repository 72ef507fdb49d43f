"""A device for every item, and which items are next to each other."""

from __future__ import annotations

from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.coarsening import Coarsening

Assignment = tuple[int, ...]
"""Device index per item."""


def adjacent_items(costed: CostedGraph, coarsening: Coarsening) -> list[set[int]]:
    """For each item, the others that it exchanges a tensor with or waits for."""
    graph, item_of = costed.graph, coarsening.item_of
    adjacent: list[set[int]] = [set() for _ in coarsening.items]
    for op in graph.ops:
        for source in graph.sources[op.name]:
            a, b = item_of[source], item_of[op.name]
            if a != b:
                adjacent[a].add(b)
                adjacent[b].add(a)
    return adjacent
