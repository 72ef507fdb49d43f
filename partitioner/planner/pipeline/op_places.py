"""Where the ops and tensors of a step count, for items in forward order: what is the same for every number of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.planner.model.buffers import Buffers, buffers_of
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.selective import selective
from partitioner.stages.roles import READ

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
OpKind = Literal["forward", "backward", "weights", "again", "selective", "once", "update"]


@dataclass(frozen=True, slots=True)
class Placed:
    """Ops, tensors or variables by their index in the graph, and the place of the item that each counts with."""

    indices: Indices
    places: Indices

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Placed:
        """Those of pairs of an index and a place."""
        made = np.array(list(pairs), dtype=np.intp).reshape(-1, 2)
        return cls(made[:, 0], made[:, 1])

    def totals(self, values: Floats, num_places: int) -> Floats:
        """The sum at each place of a value for each index."""
        return np.bincount(self.places, values[self.indices], minlength=num_places).astype(float)

    def least(self, values: Floats, num_places: int) -> Floats:
        """The least value at each place; 0 where there is none."""
        least = np.full(num_places, np.inf)
        np.minimum.at(least, self.places, values[self.indices])
        return np.where(np.isfinite(least), least, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Tensors by the boundaries that they cross; boundary i is that between items i - 1 and i.

    Attributes:
        tensors: All of them.
        by_row: Those that differ from microbatch to microbatch, boundary by boundary.
        before: Of each of these, the place of the nearest item before the boundary that makes it for one behind, or
            reads it from there.
        behind: The same behind the boundary.
    """

    tensors: Placed
    by_row: Placed
    before: Indices
    behind: Indices

    def least(self, values: Floats, positions: range, first: int, end: int) -> float:
        """The least value of a tensor that goes over any of some boundaries between the items from first to end.

        0 where there is none at one of them.
        """
        own = slice(*np.searchsorted(self.by_row.places, (positions.start, positions.stop)))
        links = (self.before[own] >= first) & (self.behind[own] < end)
        if not links.any() or len(np.unique(self.by_row.places[own][links])) < len(positions):
            return 0.0
        return float(values[self.by_row.indices[own][links]].min())


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Tensors that are gone by the end of the phase in which they are made, in graph order.

    Attributes:
        tensors: By their index in the graph.
        made: The number of the op that makes each.
        read: That of the last op which reads it.
        ops: Forward and backward ops, with their places.
    """

    tensors: Indices
    made: Indices
    read: Indices
    ops: Placed

    def most(self, values: Floats, num_places: int) -> Floats:
        """The largest sum at each place, of a value for each tensor that is there at a time."""
        count, own = int(self.ops.indices.max(initial=0)) + 2, values[self.tensors]
        alive = np.cumsum(np.bincount(self.made, own, count) - np.bincount(self.read + 1, own, count))
        most = np.zeros(num_places)
        np.maximum.at(most, self.ops.places, alive[self.ops.indices])
        return most


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPlaces:
    """Where the ops and tensors of a step count.

    Attributes:
        order: The items in forward order.
        place: Of each op, by name: of its item, and of a backward op that of the first item whose gradients it needs.
        cheap: The ops that run again in selective recompute.
        ops: The ops of each kind of seconds, as in `OrderedItems`, with their places.
        variables: Those that are used.
        saved: Tensors that a microbatch keeps for its backward.
        selectively_saved: Those that it keeps where cheap ops run again.
        late: Tensors that a microbatch keeps for gradients of weights that wait.
        passing: Tensors of a microbatch that are kept for neither.
        gradients: Gradients of variables.
        forward: Tensors that cross to later items.
        backward: Tensors that cross to earlier items.
    """

    order: tuple[int, ...]
    place: Mapping[str, int]
    cheap: frozenset[str]
    ops: Mapping[OpKind, Placed]
    variables: Placed
    saved: Placed
    selectively_saved: Placed
    late: Placed
    passing: Passing
    gradients: Placed
    forward: Crossing
    backward: Crossing


def op_places(costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> OpPlaces:
    """Where the ops and tensors of a step count, for items in this order."""
    graph, buffers = costed.graph, buffers_of(costed)
    place, by_row = _places(graph, coarsening, order), depending_on_rows(graph)
    cheap = selective(costed, by_row)
    of_weights = _of_weights(graph, place)
    index = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
    kept = [(name, maker, graph.op[maker].phase is Phase.BACKWARD) for name, maker in buffers.kept.items()]
    forward, backward = _crossing(graph, buffers, place, by_row)
    return OpPlaces(
        order=tuple(order),
        place=place,
        cheap=cheap.ops,
        ops=_ops_by_kind(graph, place, by_row, of_weights, cheap.ops),
        variables=Placed.of(
            (number, place[buffers.home_op[variable.name]])
            for number, variable in enumerate(graph.variables)
            if variable.name in buffers.home_op
        ),
        saved=Placed.of(
            (index[name], place[maker]) for name, maker, is_gradient in kept if not is_gradient and maker in by_row
        ),
        selectively_saved=Placed.of((index[name], place[maker]) for name, maker in cheap.kept.items()),
        late=Placed.of((index[name], at) for name, at in _kept_late(graph, buffers, place, by_row, of_weights).items()),
        passing=_passing(costed, buffers, place),
        gradients=Placed.of((index[name], place[maker]) for name, maker, is_gradient in kept if is_gradient),
        forward=forward,
        backward=backward,
    )


def depending_on_rows(graph: OpGraph) -> frozenset[str]:
    """The ops that differ from microbatch to microbatch: arguments, random numbers, state, and what depends on them."""
    return graph.depending_on(
        op.name for op in graph.ops if op.type == "Placeholder" or (op.stateful and op.type != READ)
    )


def _places(graph: OpGraph, coarsening: Coarsening, order: Sequence[int]) -> dict[str, int]:
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


def _ops_by_kind(
    graph: OpGraph,
    place: Mapping[str, int],
    by_row: frozenset[str],
    of_weights: Collection[str],
    cheap: Collection[str],
) -> dict[OpKind, Placed]:
    again, again_if_cheap = _run_again(graph, place, by_row), _run_again(graph, place, cheap)
    kinds: dict[OpKind, list[tuple[int, int]]] = {
        kind: [] for kind in ("forward", "backward", "weights", "again", "selective", "once", "update")
    }
    for number, op in enumerate(graph.ops):
        counted = number, place[op.name]
        if op.phase is Phase.UPDATE:
            kinds["update"].append(counted)
        elif op.phase is Phase.BACKWARD:
            kinds["backward"].append(counted)
        else:
            # The seed of the gradients is an argument, too: only forward ops are known to depend on no row.
            kinds["forward" if op.name in by_row else "once"].append(counted)
        if op.name in again:
            kinds["again"].append(counted)
        if op.name in again_if_cheap:
            kinds["selective"].append(counted)
        if op.name in of_weights:
            kinds["weights"].append(counted)
    return {kind: Placed.of(counted) for kind, counted in kinds.items()}


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


def _kept_late(
    graph: OpGraph, buffers: Buffers, place: Mapping[str, int], by_row: frozenset[str], of_weights: Collection[str]
) -> dict[str, int]:
    """The tensors of `late`, with the place of what reads them."""
    kept: dict[str, int] = {}
    for op in graph.ops:
        if op.name not in of_weights:
            continue
        for root in filter(None, map(buffers.root, op.inputs)):
            maker = graph.op[graph.tensor[root].producer]
            if maker.name not in of_weights and (maker.name in by_row or maker.phase is Phase.BACKWARD):
                kept.setdefault(root, place[op.name])
    return kept


def _passing(costed: CostedGraph, buffers: Buffers, place: Mapping[str, int]) -> Passing:
    graph = costed.graph
    number = {op.name: index for index, op in enumerate(graph.ops)}
    read: dict[str, int] = {}
    for op in graph.ops:
        for root in filter(None, map(buffers.root, op.inputs)):
            read[root] = number[op.name]
    inner = costed.fusion.inner if costed.fusion else frozenset[str]()
    found = [
        (index, number[tensor.producer], read[tensor.name])
        for index, tensor in enumerate(graph.tensors)
        if tensor.name in read and tensor.name not in buffers.kept and tensor.name not in inner
        if graph.op[tensor.producer].type not in ("Const", "Placeholder", READ)
        if graph.op[tensor.producer].phase is graph.ops[read[tensor.name]].phase is not Phase.UPDATE
    ]
    tensors, made, last = np.array(found, dtype=np.intp).reshape(-1, 3).T
    ops = Placed.of((number[op.name], place[op.name]) for op in graph.ops if op.phase is not Phase.UPDATE)
    return Passing(tensors=tensors, made=made, read=last, ops=ops)


def _run_again(graph: OpGraph, place: Mapping[str, int], may: Collection[str]) -> set[str]:
    """The ops of `again_seconds`, or of `selective_seconds`, of those that may run again."""
    again: set[str] = set()
    for op in reversed(graph.ops):
        if op.phase is not Phase.FORWARD or op.stateful or op.name not in may or op.type == "Placeholder":
            continue
        readers = (graph.op[name] for tensor in op.outputs for name in graph.consumers[tensor])
        near = (reader for reader in readers if place[reader.name] == place[op.name])
        if any(reader.phase is Phase.BACKWARD or reader.name in again for reader in near):
            again.add(op.name)
    return again


def _crossing(
    graph: OpGraph, buffers: Buffers, place: Mapping[str, int], by_row: frozenset[str]
) -> tuple[Crossing, Crossing]:
    """The tensors that cross to later and to earlier items."""
    forward, backward = list[_Link](), list[_Link]()
    for number, tensor in enumerate(graph.tensors):
        maker = graph.op[tensor.producer]
        if maker.phase is Phase.UPDATE or maker.type == "Const" or buffers.root(tensor.name) is None:
            continue
        here, differs = place[tensor.producer], tensor.producer in by_row
        readers = {place[name] for name in graph.consumers[tensor.name] if graph.op[name].phase is not Phase.UPDATE}
        for low, high in pairwise([here, *sorted(at for at in readers if at > here)]):
            forward += [_Link(at, number, here, high, differs) for at in range(low + 1, high + 1)]
        for low, high in pairwise([*sorted(at for at in readers if at < here), here]):
            backward += [_Link(at, number, low, here, True) for at in range(low + 1, high + 1)]
    return _crossed(forward), _crossed(backward)


class _Link(NamedTuple):
    """A tensor over a boundary, with the nearest items on both sides that make it or read it."""

    boundary: int
    tensor: int
    before: int
    behind: int
    differs: bool


def _crossed(links: Iterable[_Link]) -> Crossing:
    boundaries, tensors, before, behind, differs = np.array(sorted(links), dtype=np.intp).reshape(-1, 5).T
    by_row = differs.astype(bool)
    return Crossing(
        tensors=Placed(tensors, boundaries),
        by_row=Placed(tensors[by_row], boundaries[by_row]),
        before=before[by_row],
        behind=behind[by_row],
    )
