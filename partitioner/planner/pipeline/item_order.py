"""Items in the order of the forward pass, and what each adds to the stage that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import networkx as nx

from cost_models.memory import allocated_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.simulate.program_costs import OP_SECONDS


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


@dataclass(frozen=True, kw_only=True)
class OrderedItems:
    """Running sums over items in forward order at one batch size; entry i is the sum over the first i items.

    Attributes:
        order: The items.
        pass_seconds: Forward and backward of a microbatch, by device.
        forward_seconds: The forward alone.
        whole_seconds: Ops that run once a step, by device.
        saved_bytes: Of activations that a microbatch keeps for its backward.
        fixed_bytes: Of variables, and twice the gradients.
        forward_bytes: At boundary i, bytes of a microbatch that cross to later items.
        backward_bytes: Bytes that cross to earlier items.
    """

    order: tuple[int, ...]
    pass_seconds: tuple[tuple[float, ...], ...]
    forward_seconds: tuple[tuple[float, ...], ...]
    whole_seconds: tuple[tuple[float, ...], ...]
    saved_bytes: tuple[int, ...]
    fixed_bytes: tuple[int, ...]
    forward_bytes: tuple[int, ...]
    backward_bytes: tuple[int, ...]


def ordered_items(costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> OrderedItems:
    """The running sums for the batch size of a costed graph."""
    graph, buffers = costed.graph, Buffers(costed)
    place = {item: index for index, item in enumerate(order)}
    where = {name: place[item] for name, item in coarsening.item_of.items()}
    count, num_devices = len(order), len(costed.topology.devices)
    launch = [placed.device.launch_overhead_seconds for placed in costed.topology.devices]
    dispatch = [max(0.0, OP_SECONDS - seconds) for seconds in launch]
    passes, forward, whole = ([[0.0] * count for _ in range(num_devices)] for _ in range(3))
    for op, seconds in zip(graph.ops, costed.seconds, strict=True):
        sums = [whole] if op.phase is Phase.UPDATE else [passes, forward] if op.phase is Phase.FORWARD else [passes]
        for device in range(num_devices):
            for seconds_of_items in sums:
                seconds_of_items[device][where[op.name]] += seconds[device] + dispatch[device]
    saved, fixed = [0] * count, [0] * count
    for variable in graph.variables:
        if variable.name in buffers.home_op:
            fixed[where[buffers.home_op[variable.name]]] += allocated_bytes(variable.size_bytes, "GPU")
    for name, maker in buffers.kept.items():
        size = allocated_bytes(graph.tensor[name].size_bytes, "GPU")
        if graph.op[maker].phase is Phase.BACKWARD:
            fixed[where[maker]] += 2 * size
        else:
            saved[where[maker]] += size
    ahead, behind = _crossing_bytes(costed, buffers, where, count)
    return OrderedItems(
        order=tuple(order),
        pass_seconds=tuple(tuple(accumulate(row, initial=0.0)) for row in passes),
        forward_seconds=tuple(tuple(accumulate(row, initial=0.0)) for row in forward),
        whole_seconds=tuple(tuple(accumulate(row, initial=0.0)) for row in whole),
        saved_bytes=tuple(accumulate(saved, initial=0)),
        fixed_bytes=tuple(accumulate(fixed, initial=0)),
        forward_bytes=ahead,
        backward_bytes=behind,
    )


def _crossing_bytes(
    costed: CostedGraph, buffers: Buffers, where: dict[str, int], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of a microbatch over each boundary, to later and to earlier items."""
    graph = costed.graph
    ahead, behind = [0] * (count + 2), [0] * (count + 2)
    for tensor in graph.tensors:
        maker = graph.op[tensor.producer]
        if maker.phase is Phase.UPDATE or maker.type == "Const" or buffers.root(tensor.name) is None:
            continue
        readers = (graph.op[name] for name in graph.consumers[tensor.name])
        places = [where[op.name] for op in readers if op.phase is not Phase.UPDATE]
        here = where[tensor.producer]
        last, first = max([here, *places]), min([here, *places])
        ahead[here + 1] += tensor.size_bytes
        ahead[last + 1] -= tensor.size_bytes
        behind[first + 1] += tensor.size_bytes
        behind[here + 1] -= tensor.size_bytes
    return tuple(accumulate(ahead[: count + 1])), tuple(accumulate(behind[: count + 1]))
