"""Items in the order of the forward pass, and what each adds to the stage that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cost_models.memory import allocated_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.simulate.program_costs import OP_SECONDS
from partitioner.stages.roles import READ

Floats = NDArray[np.float64]

_SECONDS = ("forward_seconds", "backward_seconds", "weights_seconds", "again_seconds", "once_seconds", "update_seconds")


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
    """Running sums over n items in forward order at one batch size; entry i is the sum over the first i of them.

    Seconds have a row for each device, `(devices, n + 1)`; all else has the shape `(n + 1,)`.

    Attributes:
        order: The items.
        forward_seconds: Forward ops of a microbatch.
        backward_seconds: Backward ops of a microbatch.
        weights_seconds: Those of them that no other stage may wait for, wherever stages are cut.
        again_seconds: Forward ops that a stage runs again if it recomputes, wherever it is cut: those that backward ops
            of the same item read, and what these need of the item.
        once_seconds: Ops that depend on no row, and run once before all microbatches.
        update_seconds: Ops that run once after all microbatches.
        saved_bytes: Of activations that a microbatch keeps for its backward.
        variable_bytes: Of variables.
        gradient_bytes: Of the gradients of variables.
        sum_bytes: Of those that replicas sum.
        forward_bytes: At boundary i, bytes of a microbatch that cross to later items.
        backward_bytes: Bytes that cross to earlier items.
        least_forward_bytes: The smallest of the tensors that cross to later items and depend on rows.
        least_backward_bytes: The smallest that cross to earlier items.
    """

    order: tuple[int, ...]
    forward_seconds: Floats
    backward_seconds: Floats
    weights_seconds: Floats
    again_seconds: Floats
    once_seconds: Floats
    update_seconds: Floats
    saved_bytes: Floats
    variable_bytes: Floats
    gradient_bytes: Floats
    sum_bytes: Floats
    forward_bytes: Floats
    backward_bytes: Floats
    least_forward_bytes: Floats
    least_backward_bytes: Floats
    _between: dict[tuple[str, int], Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def between(self, name: str, device: int = 0) -> Floats:
        """`x[i, j]`: these seconds on a device, or these bytes, of items i to j; not to be written to."""
        sums: Floats = getattr(self, name)
        key = name, self._alike[device] if sums.ndim > 1 else 0
        if key not in self._between:
            self._between[key] = between(sums[key[1]] if sums.ndim > 1 else sums)
        return self._between[key]

    @cached_property
    def _alike(self) -> Sequence[int]:
        """For each device, the first that takes as long for every item."""
        rows = np.stack([getattr(self, name) for name in _SECONDS])
        return [
            next(other for other in range(d + 1) if (rows[:, other] == rows[:, d]).all()) for d in range(rows.shape[1])
        ]

    @property
    def pass_seconds(self) -> Floats:
        """Forward and backward of a microbatch."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPlaces:
    """Where ops count, at any batch size.

    Attributes:
        order: The items in forward order.
        place: See `places`.
        by_row: See `depending_on_rows`.
        again: The ops of `again_seconds`.
        of_weights: The ops of `weights_seconds`.
    """

    order: tuple[int, ...]
    place: Mapping[str, int]
    by_row: frozenset[str]
    again: frozenset[str]
    of_weights: frozenset[str]


def op_places(graph: OpGraph, coarsening: Coarsening, order: Sequence[int]) -> OpPlaces:
    """Where the ops of a graph count, for items in this order."""
    place, by_row = places(graph, coarsening, order), depending_on_rows(graph)
    return OpPlaces(
        order=tuple(order),
        place=place,
        by_row=by_row,
        again=frozenset(_run_again(graph, place, by_row)),
        of_weights=frozenset(_of_weights(graph, place)),
    )


def ordered_items(costed: CostedGraph, ops: OpPlaces, summed: Iterable[str] = ()) -> OrderedItems:
    """The running sums for the batch size of a costed graph; `summed` are gradients that replicas sum."""
    graph, buffers = costed.graph, Buffers(costed)
    place, by_row, count = ops.place, ops.by_row, len(ops.order)
    bytes_of = {name: np.zeros(count) for name in ("saved", "variable", "gradient", "sum")}
    for variable in graph.variables:
        if variable.name in buffers.home_op:
            size = allocated_bytes(variable.size_bytes, "GPU")
            bytes_of["variable"][place[buffers.home_op[variable.name]]] += size
    for name, maker in buffers.kept.items():
        is_gradient = graph.op[maker].phase is Phase.BACKWARD
        if is_gradient or maker in by_row:
            size = allocated_bytes(graph.tensor[name].size_bytes, "GPU")
            bytes_of["gradient" if is_gradient else "saved"][place[maker]] += size
    for name in summed:
        bytes_of["sum"][place[graph.tensor[name].producer]] += graph.tensor[name].size_bytes
    return OrderedItems(
        order=ops.order,
        **{f"{name}_seconds": _running(values) for name, values in _seconds(costed, ops).items()},
        **{f"{name}_bytes": _running(values) for name, values in bytes_of.items()},
        **_crossing_bytes(costed, buffers, place, by_row, count),
    )


def depending_on_rows(graph: OpGraph) -> frozenset[str]:
    """The ops that differ from microbatch to microbatch: arguments, random numbers, state, and what depends on them."""
    return graph.depending_on(
        op.name for op in graph.ops if op.type == "Placeholder" or (op.stateful and op.type != READ)
    )


def _running(values: Floats) -> Floats:
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def places(graph: OpGraph, coarsening: Coarsening, order: Sequence[int]) -> dict[str, int]:
    """The place of each op: of its item, and of a backward op that of the first item whose gradients it needs.

    A sum of gradients runs in the earliest stage that makes one of them, whichever item it belongs to.
    """
    rank = {item: index for index, item in enumerate(order)}
    place: dict[str, int] = {}
    for op in graph.ops:
        place[op.name] = rank[coarsening.item_of[op.name]]
        if op.phase is Phase.BACKWARD:
            sources = (graph.tensor[name].producer for name in op.inputs)
            before = [place[source] for source in sources if graph.op[source].phase is Phase.BACKWARD]
            place[op.name] = min([place[op.name], *before])
    return place


def between(sums: Floats) -> Floats:
    """`x[i, j]`: the sum over items i to j, of running sums."""
    return sums[None, :] - sums[:, None]


def _of_weights(graph: OpGraph, place: Mapping[str, int]) -> set[str]:
    """The ops of `weights_seconds`.

    An op is waited for over a boundary if what follows from it reaches the items before. What reaches those before the
    first boundary that gradients cross is waited for wherever the stage of the op starts, if any stage before waits.
    """
    reaches: dict[str, int] = {}
    first = len(place)
    for op in reversed(graph.ops):
        if op.phase is Phase.BACKWARD:
            readers = {name for tensor in op.outputs for name in graph.consumers[tensor] if name in reaches}
            reaches[op.name] = min([place[op.name], *(reaches[name] for name in readers)])
            first = min([first, *(1 + place[name] for name in readers if place[name] < place[op.name])])
    return {name for name, reached in reaches.items() if reached >= first}


def _seconds(costed: CostedGraph, places_of: OpPlaces) -> dict[str, Floats]:
    num_devices, ops, count = len(costed.topology.devices), costed.graph.ops, len(places_of.order)
    launch = np.array([placed.device.launch_overhead_seconds for placed in costed.topology.devices])
    measured = np.array([index in costed.measured for index in range(num_devices)])
    dispatch = np.where(measured | (costed.fusion is not None), 0.0, np.maximum(0.0, OP_SECONDS - launch))
    taken = np.array(costed.seconds) + np.outer([op.type != "Placeholder" for op in ops], dispatch)
    ops_of: dict[str, list[int]] = {name: [] for name in ("forward", "backward", "weights", "again", "once", "update")}
    for index, op in enumerate(ops):
        kind = "update" if op.phase is Phase.UPDATE else "forward" if op.phase is Phase.FORWARD else "backward"
        # The seed of the gradients is an argument, too: only forward ops are known to depend on no row.
        ops_of["once" if kind == "forward" and op.name not in places_of.by_row else kind].append(index)
        if op.name in places_of.again:
            ops_of["again"].append(index)
        if op.name in places_of.of_weights:
            ops_of["weights"].append(index)
    at = np.array([places_of.place[op.name] for op in ops])
    seconds = {name: np.zeros((count, num_devices)) for name in ops_of}
    for name, indices in ops_of.items():
        np.add.at(seconds[name], at[indices], taken[indices])
    return {name: of_items.T for name, of_items in seconds.items()}


def _run_again(graph: OpGraph, place: Mapping[str, int], by_row: frozenset[str]) -> set[str]:
    """The ops of `again_seconds`."""
    again: set[str] = set()
    for op in reversed(graph.ops):
        if op.phase is not Phase.FORWARD or op.stateful or op.name not in by_row or op.type == "Placeholder":
            continue
        readers = (graph.op[name] for tensor in op.outputs for name in graph.consumers[tensor])
        near = (reader for reader in readers if place[reader.name] == place[op.name])
        if any(reader.phase is Phase.BACKWARD or reader.name in again for reader in near):
            again.add(op.name)
    return again


def _crossing_bytes(
    costed: CostedGraph, buffers: Buffers, place: Mapping[str, int], by_row: frozenset[str], count: int
) -> dict[str, Floats]:
    """Bytes of a microbatch over each boundary, to later and to earlier items; and the smallest tensor of them."""
    graph = costed.graph
    crossing = {name: np.zeros(count + 2) for name in ("forward", "backward")}
    least = {name: np.full(count + 1, np.inf) for name in crossing}
    for tensor in graph.tensors:
        maker = graph.op[tensor.producer]
        if maker.phase is Phase.UPDATE or maker.type == "Const" or buffers.root(tensor.name) is None:
            continue
        readers = [name for name in graph.consumers[tensor.name] if graph.op[name].phase is not Phase.UPDATE]
        here = place[tensor.producer]
        places = [here, *(place[name] for name in readers)]
        for name, first, last in (("forward", here, max(places)), ("backward", min(places), here)):
            crossing[name][first + 1] += tensor.size_bytes
            crossing[name][last + 1] -= tensor.size_bytes
            if first < last and (tensor.producer in by_row or name == "backward"):
                span = least[name][first + 1 : last + 1]
                np.minimum(span, tensor.size_bytes, out=span)
    return {
        **{f"{name}_bytes": np.cumsum(changes[: count + 1]) for name, changes in crossing.items()},
        **{f"least_{name}_bytes": np.where(np.isfinite(sizes), sizes, 0.0) for name, sizes in least.items()},
    }
