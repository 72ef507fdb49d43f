"""Items of an op graph that lose no useful placement: ops that share a device in any case.

Items are colocation groups; all ops of one leaf layer, since TensorFlow fuses inside layers and people name
layers; ops of one layer that XLA makes one kernel of; and ops without cost, with the op that reads them. All that is
lost are placements that split a leaf layer or a kernel.

A kernel of several layers does not join them: kernels chain all blocks of a Transformer together. Where its layers are
on two devices, XLA makes two kernels; the seconds of both count on one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from networkx.utils import UnionFind

from partitioner.constraints.conflicts import allowed_devices, refuse_contradictions
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsening import Coarsening

# A leaf layer with more parameters than this (LSTM has 3, batch normalization 2) is a model of its own, and
# is placed op by op.
_MAX_LEAF_PARAMETERS = 4


def lossless(costed: CostedGraph, constraints: Sequence[ResolvedConstraint] = ()) -> Coarsening:
    """Group ops into items.

    Args:
        costed: The graph with its costs.
        constraints: Allowed devices and colocations.

    Raises:
        InfeasibleError: Constraints contradict each other.
    """
    sets = _Sets(costed, constraints)
    _join_kernels(costed, sets)
    _join_free_ops(costed, sets)
    root_of = {op.name: sets[op.name] for op in costed.graph.ops}
    allowed = {root: sets.allowed(root) for root in root_of.values()}
    return Coarsening.of(costed.graph, allowed, root_of, is_lossless=True)


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
