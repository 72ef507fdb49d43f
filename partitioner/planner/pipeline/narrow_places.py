"""Of many items in forward order, join those between which a cut would gain little: where more crosses than nearby.

A stage may end wherever little crosses, such as behind a block of a Transformer, which hands on one tensor where two
or more cross inside it. A place where more crosses is of use only for the sake of balance: if stages should end there,
and the nearest narrower place is far. So places are kept by how many seconds of work lie between them and that one,
as a peak has prominence by how far down the way leads to a higher one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.op_places import Floats

MAX_STAGE_ITEMS = 256
"""Stages are cut by a dynamic program, which takes more items than the solver of placements."""


def between_narrow_places(costed: CostedGraph, coarsening: Coarsening, max_items: int = MAX_STAGE_ITEMS) -> Coarsening:
    """The items, of which those between two narrow places are joined if there are more than so many.

    Items that may take different devices are not joined for size, so more may remain.
    """
    if len(coarsening.items) <= max_items:
        return coarsening
    order = forward_order(costed, coarsening)
    seconds, width = _seconds_before(costed, coarsening, order), _crossing_bytes(costed, coarsening, order)
    kept = set(_most_prominent(seconds, width, max_items - 1))
    groups = [[order[0]]]
    for place, (before, item) in enumerate(pairwise(order), start=1):
        if place in kept or coarsening.allowed[before] != coarsening.allowed[item]:
            groups.append([])
        groups[-1].append(item)
    return coarsening.joined(costed.graph, groups)


def _most_prominent(seconds: Floats, width: Floats, count: int) -> list[int]:
    """The places, of 1 to n - 1 among n items, that are farthest from any that is narrower.

    Args:
        seconds: Of all items before each place, `(n + 1,)`.
        width: What crosses there, `(n + 1,)`.
        count: How many places are wanted.
    """
    narrower = [float(seconds[0]), float(seconds[-1])]  # stages end at both ends in any case
    distance: dict[int, float] = {}
    for place in sorted(range(1, len(width) - 1), key=lambda place: (width[place], place)):
        here = float(seconds[place])
        at = bisect_left(narrower, here)
        distance[place] = min(abs(here - other) for other in narrower[max(0, at - 1) : at + 1])
        insort(narrower, here)
    return sorted(distance, key=lambda place: -distance[place])[:count]


def _seconds_before(costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> Floats:
    """Seconds of all items before each place."""
    item_of, of_item = coarsening.item_of, np.zeros(len(order))
    items = [item_of[op.name] for op in costed.graph.ops]
    np.add.at(of_item, items, costed.fastest_seconds)
    return np.concatenate([[0.0], np.cumsum(of_item[list(order)])])


def _crossing_bytes(costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> Floats:
    """Bytes that cross each place, in either direction, on the way to a forward or a backward op."""
    graph, rank = costed.graph, {item: place for place, item in enumerate(order)}
    place = {name: rank[item] for name, item in coarsening.item_of.items()}
    change = np.zeros(len(order) + 1)
    for tensor in graph.tensors:
        maker = graph.op[tensor.producer]
        if maker.type == "Const":
            continue
        at = [place[name] for name in graph.consumers[tensor.name] if graph.op[name].phase is not Phase.UPDATE]
        first, last = min([place[maker.name], *at]), max([place[maker.name], *at])
        change[first + 1] += tensor.size_bytes
        change[last + 1] -= tensor.size_bytes
    return np.cumsum(change)
