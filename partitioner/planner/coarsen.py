"""Coarsen an op graph to items: ops that share a device.

They are colocation groups; all ops of one leaf layer, since TensorFlow fuses inside layers and
people name layers; and ops that cost nothing, with whoever reads them. Until here nothing is lost that a
placement could want, but for splitting a leaf layer. Only when more than `max_items` remain, the lightest
item joins the neighbour it exchanges most with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from networkx.utils import UnionFind

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import VariableKind

DEFAULT_MAX_ITEMS = 64
# A leaf layer with more parameters than this (LSTM has 3, batch normalization 2) is a model in disguise, and
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
    """

    items: tuple[tuple[str, ...], ...]
    item_of: Mapping[str, int]
    names: tuple[str, ...]
    is_lossless: bool


def coarsen(
    costed: CostedGraph, max_items: int = DEFAULT_MAX_ITEMS, keep_apart: Mapping[str, int] | None = None
) -> Coarsening:
    """Group ops into items.

    Args:
        costed: The graph with its costs.
        max_items: Merge on, lightest first, while there are more.
        keep_apart: Device index by op, for ops that are pinned; ops of different devices do not merge for
            size.
    """
    graph = costed.graph
    sets: UnionFind = UnionFind(op.name for op in graph.ops)
    for op in graph.ops:
        if op.colocation_group:
            sets.union(op.colocation_group, op.name)
    _join_leaf_layers(costed, sets)
    _join_free_ops(costed, sets, keep_apart or {})
    is_lossless = _join_lightest(costed, sets, max_items, keep_apart or {})
    members: dict[str, list[str]] = {}
    for op in graph.ops:
        members.setdefault(sets[op.name], []).append(op.name)
    items = tuple(tuple(ops) for ops in members.values())
    return Coarsening(
        items=items,
        item_of={name: index for index, ops in enumerate(items) for name in ops},
        names=tuple(next((graph.op[n].layer for n in ops if graph.op[n].layer), ops[0]) for ops in items),
        is_lossless=is_lossless,
    )


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
    first: dict[str, str] = {}
    for op in graph.ops:
        if op.layer in leaves:
            sets.union(first.setdefault(op.layer, op.name), op.name)


def _join_free_ops(costed: CostedGraph, sets: UnionFind, pinned: Mapping[str, int]) -> None:
    """Sets that cost nothing join the only one that reads them, or else the only one that feeds them."""
    graph = costed.graph
    kept = {
        sets[op.name]
        for op, seconds in zip(graph.ops, costed.seconds, strict=True)
        if any(seconds) or op.name in pinned
    }

    def join(name: str, neighbours: set[str]) -> None:
        neighbours.discard(sets[name])
        if sets[name] not in kept and len(neighbours) == 1:
            neighbour = neighbours.pop()
            is_kept = neighbour in kept
            sets.union(neighbour, name)
            if is_kept:
                kept.add(sets[name])

    for op in reversed(graph.ops):
        join(op.name, {sets[reader] for name in op.outputs for reader in graph.consumers[name]})
    for op in graph.ops:
        if not any(graph.consumers[name] for name in op.outputs):
            join(op.name, {sets[graph.tensor[name].producer] for name in op.inputs})


def _join_lightest(costed: CostedGraph, sets: UnionFind, max_items: int, pinned: Mapping[str, int]) -> bool:
    """Merge the lightest item with the neighbour it exchanges most with, until few enough remain."""
    graph = costed.graph
    roots = list(dict.fromkeys(sets[op.name] for op in graph.ops))
    if len(roots) <= max_items:
        return True
    weight = dict.fromkeys(roots, 0.0)
    pin: dict[str, int] = {}
    for op, seconds in zip(graph.ops, costed.seconds, strict=True):
        weight[sets[op.name]] += min(seconds)
        if op.name in pinned:
            pin[sets[op.name]] = pinned[op.name]
    traffic: dict[str, dict[str, int]] = {root: {} for root in roots}
    for op in graph.ops:
        for name in op.inputs:
            a, b = sets[graph.tensor[name].producer], sets[op.name]
            if a != b:
                size = graph.tensor[name].size_bytes + 1
                traffic[a][b] = traffic[a].get(b, 0) + size
                traffic[b][a] = traffic[b].get(a, 0) + size
    alive = {root: index for index, root in enumerate(roots)}
    stuck: set[str] = set()
    while len(alive) > max_items:
        candidates = [root for root in alive if root not in stuck]
        if not candidates:
            break
        light = min(candidates, key=lambda r: (weight[r], alive[r]))
        partners = [r for r in traffic[light] if pin.get(r, pin.get(light)) == pin.get(light, pin.get(r))]
        if not partners:
            stuck.add(light)
            continue
        heavy = max(partners, key=lambda r: (traffic[light][r], -alive[r]))
        sets.union(heavy, light)
        _absorb(light, heavy, weight, traffic, pin, alive)
        if (root := sets[heavy]) != heavy:  # the structure keeps whichever name it likes
            tables: list[dict[str, Any]] = [weight, traffic, pin, alive]
            for table in tables:
                if heavy in table:
                    table[root] = table.pop(heavy)
            for neighbour in traffic[root]:
                traffic[neighbour][root] = traffic[neighbour].pop(heavy)
    return False


def _absorb(
    light: str,
    heavy: str,
    weight: dict[str, float],
    traffic: dict[str, dict[str, int]],
    pin: dict[str, int],
    alive: dict[str, int],
) -> None:
    weight[heavy] += weight.pop(light)
    alive[heavy] = min(alive[heavy], alive.pop(light))
    if light in pin:
        pin[heavy] = pin.pop(light)
    for neighbour, size in traffic.pop(light).items():
        del traffic[neighbour][light]
        if neighbour != heavy:
            traffic[heavy][neighbour] = traffic[heavy].get(neighbour, 0) + size
            traffic[neighbour][heavy] = traffic[neighbour].get(heavy, 0) + size
