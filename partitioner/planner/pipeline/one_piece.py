"""Lower bound on a step in one piece whose devices hold consecutive items: ops run as soon as they can.

An op starts once the longest path to it has been computed, its head, and the longest path behind it, its tail, follows
it. Of the ops of a device with a head and a tail of so much at the least, the first starts after such a head, and such
a tail follows the last; between, the device has the work of all of them (Carlier, "The one-machine sequencing problem",
1982). Ops that no row of the batch reaches, such as casts of weights, are left out of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.pipeline.item_order import Floats, between, depending_on_rows, places
from partitioner.planner.pipeline.least_cut import least_cut

# Heads and tails that are told apart.
_NUM_HEADS, _NUM_TAILS = 24, 12


@dataclass(frozen=True, kw_only=True)
class OnePieceBound:
    """The bound, and the cuts that it refutes last.

    Attributes:
        seconds: No cut is faster.
        closest: For each number of devices from two on, the device of each item in the cut with the least bound. Where
            gradients of weights wait for those of inputs, a chain of layers reaches it, but for transfers.
    """

    seconds: float
    closest: tuple[Assignment, ...] = ()


def one_piece_bound(costed: CostedGraph, coarsening: Coarsening, order: tuple[int, ...]) -> OnePieceBound:
    """The bound over all cuts of the items, in this order, into at most as many parts as there are devices.

    Transfers are free in it, and every op takes what it takes on its fastest device.
    """
    graph, count, num_devices = costed.graph, len(order), len(costed.topology.devices)
    alone = min(map(sum, zip(*costed.seconds, strict=True)), default=0.0)
    if num_devices == 1 or count < 2:
        return OnePieceBound(seconds=alone)
    place = places(graph, coarsening, order)
    by_row = depending_on_rows(graph)
    fastest = np.array([min(row) for row in costed.seconds])
    heads, tails = _heads_and_tails(graph, fastest)
    counted = np.array([op.name in by_row for op in graph.ops]) & (fastest > 0)
    items = np.array([place[op.name] for op in graph.ops])
    ends = np.zeros((count + 1, count + 1))
    for head, tail in product(_steps(heads[counted], _NUM_HEADS), _steps(tails[counted], _NUM_TAILS)):
        chosen = counted & (heads >= head) & (tails >= tail)
        work = between(_sums(np.bincount(items[chosen], fastest[chosen], minlength=count).astype(float)))
        np.maximum(ends, np.where(work > 0, head + work + tail, 0.0), out=ends)
    table = np.where(np.tri(count + 1, dtype=bool), np.inf, ends)
    cuts = [least_cut([table] * number) for number in range(2, min(num_devices, count) + 1)]
    return OnePieceBound(
        seconds=min(alone, *(seconds for _, seconds in cuts)),
        closest=tuple(_assignment(ends, order) for ends, _ in cuts if ends is not None),
    )


def _assignment(ends: Sequence[int], order: Sequence[int]) -> Assignment:
    device = {item: part for part, (start, end) in enumerate(pairwise([0, *ends])) for item in order[start:end]}
    return tuple(device[item] for item in range(len(order)))


def _heads_and_tails(graph: OpGraph, seconds: Floats) -> tuple[Floats, Floats]:
    """Of each op, in graph order: the longest path to it, and the longest behind it, without itself."""
    index = {op.name: number for number, op in enumerate(graph.ops)}
    sources = [[index[source] for source in graph.sources[op.name]] for op in graph.ops]
    heads, tails = [0.0] * len(index), [0.0] * len(index)
    taken = seconds.tolist()
    for number, made_by in enumerate(sources):
        heads[number] = max((heads[source] + taken[source] for source in made_by), default=0.0)
    for number in reversed(range(len(sources))):
        behind = tails[number] + taken[number]
        for source in sources[number]:
            tails[source] = max(tails[source], behind)
    return np.array(heads), np.array(tails)


def _steps(values: Floats, most: int) -> list[float]:
    """Some of the values, evenly spread over their order, the least among them."""
    ordered = np.unique(values)
    return ordered[np.unique(np.linspace(0, len(ordered) - 1, most).astype(int))].tolist() if len(ordered) else []


def _sums(values: Floats) -> Floats:
    return np.insert(np.cumsum(values), 0, 0.0)
