"""What a device that holds a part of the items has in its memory, at one moment of a step in one piece, at the least.

When the op has ended that all gradients wait for, activations that were made before it, for gradients that come behind
it, are all there: those that the part both makes and reads, beside its variables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.planner.model.buffers import Buffers, buffers_of
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.op_places import Floats


def least_held_bytes(costed: CostedGraph, coarsening: Coarsening, order: Sequence[int], awaited: str) -> Floats:
    """`(n + 1, n + 1)`: bytes of the part of items i to j.

    Args:
        costed: The step.
        coarsening: The items.
        order: Their order.
        awaited: The name of an op; what does not come before it, or whose gradients do not wait for it, is left out.
    """
    graph, buffers = costed.graph, buffers_of(costed)
    rank = {item: place for place, item in enumerate(order)}
    place = {op.name: rank[coarsening.item_of[op.name]] for op in graph.ops}
    sizes = np.zeros((len(order), len(order)))  # by the first and the last item that a part must have
    for variable in graph.variables:
        if variable.name in buffers.home_op:
            home = place[buffers.home_op[variable.name]]
            sizes[home, home] += variable.size_bytes
    readers, before = _readers(graph, buffers, awaited), _before(graph, awaited)
    for name, maker in buffers.kept.items():
        if maker in before and graph.op[maker].type != "Placeholder" and name in readers:
            here = place[maker]
            near = min((place[reader] for reader in readers[name]), key=lambda there: abs(there - here))
            size = min(graph.tensor[name].size_bytes, *(of_kind[name] for of_kind in buffers.sizes.values()))
            sizes[min(here, near), max(here, near)] += size
    held = np.zeros((len(order) + 1, len(order) + 1))
    held[:-1, 1:] = sizes[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
    return held


def _readers(graph: OpGraph, buffers: Buffers, awaited: str) -> dict[str, list[str]]:
    """The backward ops behind the op that is awaited, by the buffers that they read."""
    behind = graph.depending_on([awaited])
    readers: dict[str, list[str]] = {}
    for op, cost in zip(graph.ops, buffers.costed.costs, strict=True):
        if op.name in behind and op.phase is Phase.BACKWARD and (cost.flops or cost.moved_bytes):
            for root in filter(None, map(buffers.root, op.inputs)):
                readers.setdefault(root, []).append(op.name)
    return readers


def _before(graph: OpGraph, awaited: str) -> set[str]:
    """The forward ops that the op waits for, itself included."""
    before = {awaited}
    for op in reversed(graph.ops):
        if op.name in before:
            before.update(graph.sources[op.name])
    return {name for name in before if graph.op[name].phase is Phase.FORWARD}
