"""How far a CPU may run ahead of an order that needs little memory.

TensorFlow's executor starts an op as soon as it can. On a CPU it takes up last what became ready first, so gradients of
weights that nobody waits for may come at the very end, and keep alive all that they read; and what comes first differs
from process to process. So each op that works waits for those that are a few places or more before it in an order of
ours: forward and backward as traced, and the update of a variable as soon as its gradient is there. Ops next to each
other still run at the same time. A GPU runs ops in the order in which they become ready, and is left alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from cost_models.formulas_movement import FREE_OP_TYPES
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph, Phase

AHEAD = 4
"""Places: what runs at the same time on a few cores, and of a layer's backward pass about all that belongs together."""


def keeps_order(device: str) -> bool:
    """Whether ops on a device are held to an order."""
    return DeviceName.parse(device).type == "CPU"


def run_ahead_limits(
    graph: OpGraph,
    ops: Sequence[str],
    *,
    aliases: Mapping[str, str] | None = None,
    given: Collection[str] = (),
) -> dict[str, list[str]]:
    """For ops of one device, those that each has to wait for, besides what it needs.

    Args:
        graph: Has the ops.
        ops: Names in graph order.
        aliases: Tensors that are read in place of others.
        given: Tensors that are there before any op runs.
    """
    needs = _needs(graph, ops, aliases or {}, given)
    order = [name for name in _order(graph, ops, needs) if graph.op[name].type not in FREE_OP_TYPES]
    # Each of these waits for as many before it in turn, so none that comes before them is left out.
    limits = {
        name: [
            source for source in order[max(0, index - 2 * AHEAD + 1) : index - AHEAD + 1] if source not in needs[name]
        ]
        for index, name in enumerate(order[AHEAD:], AHEAD)
    }
    return {name: sources for name, sources in limits.items() if sources}


def _needs(
    graph: OpGraph, ops: Sequence[str], aliases: Mapping[str, str], given: Collection[str]
) -> dict[str, list[str]]:
    inside = set(ops).difference(graph.tensor[name].producer for name in given)
    needs = {}
    for name in ops:
        op = graph.op[name]
        made = (graph.tensor[aliases.get(read, read)].producer for read in op.inputs)
        needs[name] = [source for source in dict.fromkeys([*made, *op.control_inputs]) if source in inside]
    return needs


def _order(graph: OpGraph, ops: Sequence[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Ops in graph order, but updates right after the last gradient op that they need."""
    keys = _keys(graph, ops, needs)
    readers: dict[str, list[str]] = {}
    for name in ops:
        for source in needs[name]:
            readers.setdefault(source, []).append(name)
    waiting = {name: len(needs[name]) for name in ops}
    ready = [(keys[name], name) for name in ops if not waiting[name]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for reader in readers.get(name, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (keys[reader], reader))
    return order


def _keys(graph: OpGraph, ops: Sequence[str], needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """By op, the place of the last backward op that it needs, if it is an update; else its own place.

    An update op that needs none (a slot times its decay) goes with the first that reads it.
    """
    last: dict[str, int] = {}
    for index, name in enumerate(ops):
        is_backward = graph.op[name].phase is Phase.BACKWARD
        last[name] = index if is_backward else max((last.get(source, -1) for source in needs[name]), default=-1)
    first_reader: dict[str, int] = {}
    for name in reversed(ops):
        place = last[name] if last[name] >= 0 else first_reader.get(name, len(ops))
        for source in needs[name]:
            first_reader[source] = min(first_reader.get(source, len(ops)), place)
    return {
        name: (last[name] if last[name] >= 0 else first_reader.get(name, len(ops)), 1, index)
        if graph.op[name].phase is Phase.UPDATE
        else (index, 0, index)
        for index, name in enumerate(ops)
    }
