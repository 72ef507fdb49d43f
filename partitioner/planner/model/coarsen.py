"""Coarsen an op graph to items: ops that share a device.

Items are colocation groups; all ops of one leaf layer, since TensorFlow fuses inside layers and people name
layers; ops of one layer that XLA makes one kernel of; and ops without cost, with the op that reads them. So far no
useful placement is lost, except those that split a leaf layer or a kernel. Only when more than `max_items` remain, the
lightest item joins the neighbour with which it exchanges most.

A kernel of several layers does not join them: kernels chain all blocks of a Transformer together. Where its layers are
on two devices, XLA makes two kernels; the seconds of both count on one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from networkx.utils import UnionFind

from partitioner.constraints.conflicts import allowed_devices, refuse_contradictions
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase, VariableKind
from partitioner.ir.requirements import ResolvedConstraint

DEFAULT_MAX_ITEMS = 64
MAX_STAGE_ITEMS = 256
"""Stages are cut by a dynamic program, which takes more items than the solver of placements."""
# Of the most bytes that an item exchanges with a neighbour, the share that counts as much, too.
_MUCH = 0.5
# A leaf layer with more parameters than this (LSTM has 3, batch normalization 2) is a model of its own, and
# is placed op by op.
_MAX_LEAF_PARAMETERS = 4


@dataclass(frozen=True, kw_only=True)
class Coarsening:
    """Items of a graph, in the order of their first op.

    Attributes:
        items: Names of the ops of each item.
        item_of: Item index by op name.
        names: A name per item that people recognise: its layer, else its first op.
        is_lossless: Whether no item joined another for the sake of size alone.
        allowed: The devices that each item may take.
    """

    items: tuple[tuple[str, ...], ...]
    item_of: Mapping[str, int]
    names: tuple[str, ...]
    is_lossless: bool
    allowed: tuple[frozenset[int], ...]

    def placement(self, assignment: Sequence[int]) -> dict[str, int]:
        """Device index by op, from that of each item."""
        return {op: assignment[item] for op, item in self.item_of.items()}

    def anywhere(self, num_devices: int) -> Coarsening:
        """The same items, each allowed on all of so many devices."""
        return replace(self, allowed=(frozenset(range(num_devices)),) * len(self.items))


def coarsen(
    costed: CostedGraph, max_items: int = DEFAULT_MAX_ITEMS, constraints: Sequence[ResolvedConstraint] = ()
) -> Coarsening:
    """Group ops into items.

    Args:
        costed: The graph with its costs.
        max_items: Merge on, lightest first, while there are more.
        constraints: Allowed devices and colocations; items with different allowed devices do not merge for size.

    Raises:
        InfeasibleError: Constraints contradict each other.
    """
    return coarsenings(costed, (max_items,), constraints)[0]


def coarsenings(
    costed: CostedGraph, sizes: Sequence[int], constraints: Sequence[ResolvedConstraint] = ()
) -> list[Coarsening]:
    """Coarsenings to so many items at the most, the largest number first: each joins items of the one before.

    Arguments and errors as for `coarsen`.
    """
    sets = _Sets(costed, constraints)
    _join_kernels(costed, sets)
    _join_free_ops(costed, sets)
    parts = _Parts(costed, sets)
    made, num_lossless = [], parts.count
    for size in sizes:
        _join_lightest(parts, sets, size)
        made.append(_coarsening(costed, sets, is_lossless=num_lossless <= size))
    return made


def _coarsening(costed: CostedGraph, sets: _Sets, *, is_lossless: bool) -> Coarsening:
    graph = costed.graph
    members: dict[str, list[str]] = {}
    for op in graph.ops:
        members.setdefault(sets[op.name], []).append(op.name)
    items = tuple(tuple(ops) for ops in members.values())
    return Coarsening(
        items=items,
        item_of={name: index for index, ops in enumerate(items) for name in ops},
        names=tuple(next((graph.op[n].layer for n in ops if graph.op[n].layer), ops[0]) for ops in items),
        is_lossless=is_lossless,
        allowed=tuple(sets.allowed(root) for root in members),
    )


class _Sets:
    """Sets of ops that share a device, and the devices that each may take."""

    def __init__(self, costed: CostedGraph, constraints: Sequence[ResolvedConstraint]) -> None:
        graph, devices = costed.graph, [placed.name for placed in costed.topology.devices]
        self._sets: UnionFind = UnionFind(op.name for op in graph.ops)
        groups: dict[str, list[str]] = {}
        for op in graph.ops:
            if op.colocation_group:
                groups.setdefault(op.colocation_group, []).append(op.name)
        for first, others in groups.items():
            self._sets.union(first, *others)
        _join_leaf_layers(costed, self._sets)
        set_of = {op.name: self._sets[op.name] for op in graph.ops}
        refuse_contradictions(set_of, constraints, devices, title=lambda name: graph.op[name].title)
        for constraint in constraints:
            if constraint.together:
                self._sets.union(*dict.fromkeys(constraint.ops))
        _, left = allowed_devices(set_of, constraints, len(devices))
        self._everywhere = frozenset(range(len(devices)))
        self._allowed = {self._sets[root]: places for root, places in left.items()}

    def __getitem__(self, name: str) -> str:
        return self._sets[name]

    def allowed(self, root: str) -> frozenset[int]:
        return self._allowed.get(root, self._everywhere)

    def join(self, into: str, root: str) -> str:
        """Join two sets; returns the name of the joined set."""
        places = self.allowed(into) & self.allowed(root)
        self._sets.union(into, root)
        joined = self._sets[into]
        if len(places) < len(self._everywhere):
            self._allowed[joined] = places
        return joined


def _join_leaf_layers(costed: CostedGraph, sets: UnionFind) -> None:
    graph = costed.graph
    parameters: dict[str, int] = {}
    for variable in graph.variables:
        if variable.kind is VariableKind.PARAMETER:
            parameters[variable.layer] = parameters.get(variable.layer, 0) + 1
    leaves = {
        layer.path
        for layer in graph.layers
        if not layer.is_container and parameters.get(layer.path, 0) <= _MAX_LEAF_PARAMETERS
    }
    members: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.layer in leaves:
            members.setdefault(op.layer, []).append(op.name)
    for ops in members.values():
        sets.union(*ops)


def _join_kernels(costed: CostedGraph, sets: _Sets) -> None:
    """Ops of one kernel and one layer share a device, unless they are told to go to different ones."""
    op = costed.graph.op
    for group in costed.fusion.groups if costed.fusion else ():
        first: dict[str, str] = {}
        for name in group.ops:
            other = first.setdefault(op[name].layer, name)
            if sets[other] != sets[name] and sets.allowed(sets[other]) == sets.allowed(sets[name]):
                sets.join(sets[other], sets[name])


def _join_free_ops(costed: CostedGraph, sets: _Sets) -> None:
    """Sets without cost join the only set that reads them, or else the only set that feeds them."""
    graph = costed.graph
    # Of a fused kernel one op has all seconds, but no op of it is free.
    rows = zip(graph.ops, costed.costs, *(costed.columns[device] for device in set(costed.alike)), strict=True)
    costly = {sets[op.name] for op, cost, *seconds in rows if cost.flops or cost.moved_bytes or any(seconds)}

    def join(root: str, others: Iterable[str]) -> None:
        neighbours = {sets[other] for other in others} - {root}
        if len(neighbours) != 1:
            return
        neighbour = neighbours.pop()
        if sets.allowed(root) >= sets.allowed(neighbour):
            joined = sets.join(neighbour, root)
            if neighbour in costly:
                costly.add(joined)

    for op in reversed(graph.ops):
        if (root := sets[op.name]) not in costly:
            join(root, (reader for name in op.outputs for reader in graph.consumers[name]))
    for op in graph.ops:
        if not any(graph.consumers[name] for name in op.outputs) and (root := sets[op.name]) not in costly:
            join(root, (graph.tensor[name].producer for name in op.inputs))


def _join_lightest(parts: _Parts, sets: _Sets, max_items: int) -> None:
    """Merge the lightest item with a neighbour until few enough remain."""
    for neighbours in (parts.in_line, parts.any_neighbour):
        while parts.count > max_items and (joined := parts.join_lightest(neighbours)):
            sets.join(*joined)


class _Parts:
    """The items as a graph that shrinks: their seconds, the bytes between them, and the order of their forward ops."""

    def __init__(self, costed: CostedGraph, sets: _Sets) -> None:
        graph = costed.graph
        root_of = {op.name: sets[op.name] for op in graph.ops}
        roots = dict.fromkeys(root_of.values())
        self._place = {root: index for index, root in enumerate(roots)}
        self._allowed = {root: sets.allowed(root) for root in roots}
        self._seconds = dict.fromkeys(roots, 0.0)
        self._traffic: dict[str, dict[str, int]] = {root: {} for root in roots}
        self._before: dict[str, set[str]] = {root: set() for root in roots}
        self._behind: dict[str, set[str]] = {root: set() for root in roots}
        for op, seconds in zip(graph.ops, costed.fastest_seconds, strict=True):
            here = root_of[op.name]
            self._seconds[here] += seconds
            for name in op.inputs:
                maker = graph.op[graph.tensor[name].producer]
                source = root_of[maker.name]
                if source == here:
                    continue
                for a, b in ((source, here), (here, source)):
                    self._traffic[a][b] = self._traffic[a].get(b, 0) + graph.tensor[name].size_bytes + 1
                if op.phase is Phase.FORWARD and maker.type != "Const":
                    self._behind[source].add(here)
                    self._before[here].add(source)

        self._queue = [(seconds, self._place[root], root) for root, seconds in self._seconds.items()]
        heapq.heapify(self._queue)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._place)

    def in_line(self, root: str) -> list[str]:
        """Neighbours that an item may join so that no third item runs between the two of them.

        That is so where one of both is all that is directly before or behind the other (J. Herrmann et al., "Acyclic
        partitioning of large directed acyclic graphs", 2017). The blocks of a Transformer, whose sums are in line only
        through them, would else end as one item of all sums.
        """
        before, behind = self._before[root], self._behind[root]
        return [
            *(other for other in before if len(before) == 1 or len(self._behind[other]) == 1),
            *(other for other in behind if len(behind) == 1 or len(self._before[other]) == 1),
        ]

    def any_neighbour(self, root: str) -> list[str]:
        """All neighbours."""
        return [*self._traffic[root]]

    def join_lightest(self, neighbours: Callable[[str], list[str]]) -> tuple[str, str] | None:
        """Let the lightest item that may join a neighbour do so; both, or None.

        Of neighbours with which it exchanges much, it joins the lightest, so that items become alike.
        """
        passed_over, joined = [], None
        while self._queue and joined is None:
            seconds, place, light = entry = heapq.heappop(self._queue)
            if (self._seconds.get(light), self._place.get(light)) != (seconds, place):
                continue  # it has joined another, or another has joined it
            partners = [root for root in neighbours(light) if self._may_join(root, light)]
            if not partners:
                passed_over.append(entry)
                continue
            most = max(self._traffic[light][root] for root in partners)
            near = [root for root in partners if self._traffic[light][root] >= _MUCH * most]
            heavy = min(near, key=lambda root: (self._seconds[root], self._place[root]))
            self._join(heavy, light)
            joined = heavy, light
            heapq.heappush(self._queue, (self._seconds[heavy], self._place[heavy], heavy))
        for entry in passed_over:
            heapq.heappush(self._queue, entry)
        return joined

    def _may_join(self, one: str, other: str) -> bool:
        a, b = self._allowed[one], self._allowed[other]
        return a <= b or b <= a

    def _join(self, heavy: str, light: str) -> None:
        self._seconds[heavy] += self._seconds.pop(light)
        self._place[heavy] = min(self._place[heavy], self._place.pop(light))
        self._allowed[heavy] &= self._allowed.pop(light)
        for neighbour, size in self._traffic.pop(light).items():
            del self._traffic[neighbour][light]
            if neighbour != heavy:
                self._traffic[heavy][neighbour] = self._traffic[heavy].get(neighbour, 0) + size
                self._traffic[neighbour][heavy] = self._traffic[neighbour].get(heavy, 0) + size
        for ahead, back in ((self._before, self._behind), (self._behind, self._before)):
            for other in ahead.pop(light):
                back[other].discard(light)
                if other != heavy:
                    back[other].add(heavy)
                    ahead[heavy].add(other)
            ahead[heavy].discard(light)
