"""Lower bound on a step in one piece whose devices hold consecutive items: ops run as soon as they can.

Before a device can run anything, the path to the first of its forward ops has to be computed, and before it can run a
backward, the path to the first of these; then it has the work of all its ops. Ops that no row of the batch reaches,
such as casts of weights, may run before; they are left out.
"""

from __future__ import annotations

import numpy as np

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.pipeline.item_order import Floats, between, depending_on_rows, places
from partitioner.planner.pipeline.least_cut import least_cut


def one_piece_bound_seconds(costed: CostedGraph, coarsening: Coarsening, order: tuple[int, ...]) -> float:
    """The bound over all cuts of the items, in this order, into at most as many parts as there are devices.

    Transfers are free in it, and every op takes what it takes on its fastest device.
    """
    graph, count, num_devices = costed.graph, len(order), len(costed.topology.devices)
    alone = min(map(sum, zip(*costed.seconds, strict=True)), default=0.0)
    if num_devices == 1 or count < 2:
        return alone
    place = places(graph, coarsening, order)
    by_row = depending_on_rows(graph)
    behind_gradients = graph.depending_on(op.name for op in graph.ops if op.phase is Phase.BACKWARD)
    work, late = np.zeros(count), np.zeros(count)
    first = {phase: np.full(count, np.inf) for phase in (Phase.FORWARD, Phase.BACKWARD)}
    end: dict[str, float] = {}
    for op, row in zip(graph.ops, costed.seconds, strict=True):
        sources = [graph.tensor[name].producer for name in op.inputs] + list(op.control_inputs)
        start, seconds, here = max((end[name] for name in sources), default=0.0), min(row), place[op.name]
        end[op.name] = start + seconds
        if seconds and op.name in by_row:
            work[here] += seconds
            late[here] += seconds if op.name in behind_gradients else 0.0
            if op.phase in first:
                first[op.phase][here] = min(first[op.phase][here], start)
    # Of all items behind the first of a device, and of all before its last.
    forward = np.minimum.accumulate(np.append(first[Phase.FORWARD], np.inf)[::-1])[::-1]
    backward = np.minimum.accumulate(np.insert(first[Phase.BACKWARD], 0, np.inf))
    ends = np.maximum(_known(forward)[:, None] + between(_sums(work)), _known(backward)[None, :] + between(_sums(late)))
    table = np.where(np.tri(count + 1, dtype=bool), np.inf, ends)
    bounds = [least_cut([table] * number)[1] for number in range(2, min(num_devices, count) + 1)]
    return min(alone, *bounds)


def _known(starts: Floats) -> Floats:
    return np.where(np.isfinite(starts), starts, 0.0)


def _sums(values: Floats) -> Floats:
    return np.insert(np.cumsum(values), 0, 0.0)
