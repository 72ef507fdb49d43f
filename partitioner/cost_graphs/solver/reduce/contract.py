"""Smaller problems with merged items, and the map between their assignments and the original ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx

from partitioner.cost_graphs.solver.problem import LoadItem, MaxLoadProblem, SharedValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracted:
    """A problem with merged items: `label[item]` is the merged item of an original item."""

    problem: MaxLoadProblem
    label: tuple[int, ...]

    def lift(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the original items."""
        return tuple(assignment[label] for label in self.label)

    def lower(self, assignment: Sequence[int]) -> tuple[int, ...] | None:
        """The assignment of the merged items; None if the assignment separates merged items."""
        lowered = dict(zip(self.label, assignment, strict=True))
        if any(lowered[label] != device for label, device in zip(self.label, assignment, strict=True)):
            return None
        return tuple(lowered[label] for label in range(len(lowered)))


def merge(problem: MaxLoadProblem, labels: Sequence[int]) -> Contracted:
    """Merge the items with equal labels."""
    number: dict[int, int] = {}
    label = tuple(number.setdefault(group, len(number)) for group in labels)
    members: list[list[LoadItem]] = [[] for _ in number]
    for item, to in zip(problem.items, label, strict=True):
        members[to].append(item)
    costs: dict[tuple[int, ...], int] = {}
    for value in problem.values:
        touched = tuple(sorted({label[item] for item in value.items}))
        if len(touched) > 1:
            costs[touched] = costs.get(touched, 0) + value.cost
    merged = replace(
        problem,
        items=tuple(
            LoadItem(
                accelerator_cost=sum(item.accelerator_cost for item in items),
                cpu_cost=sum(item.cpu_cost for item in items),
                memory_bytes=sum(item.memory_bytes for item in items),
                barred=frozenset().union(*(item.barred for item in items)),
            )
            for items in members
        ),
        values=tuple(SharedValue(items=items, cost=cost) for items, cost in sorted(costs.items())),
        precedes=tuple(sorted({(label[a], label[b]) for a, b in problem.precedes if label[a] != label[b]})),
    )
    return Contracted(problem=merged, label=label)


def without_cycles(problem: MaxLoadProblem) -> Contracted:
    """Merge items that precede each other: contiguous pieces never separate them."""
    order: nx.DiGraph = nx.DiGraph(problem.precedes)
    order.add_nodes_from(range(len(problem.items)))
    label = [0] * len(problem.items)
    for component in nx.strongly_connected_components(order):
        for item in component:
            label[item] = min(component)
    return merge(problem, label)


def without_idle_items(problem: MaxLoadProblem) -> Contracted:
    """Merge items without cost and memory into a neighbour, where that keeps an optimum.

    Free placements: an item with a single value may follow any other item of the value. Contiguous placements: the item
    may follow its only predecessor (or successor) if that is in the value, too.
    """
    label = list(range(len(problem.items)))
    while True:
        smaller = merge(problem, label)
        moves = _idle_moves(smaller.problem)
        if not moves:
            return smaller
        label = [moves.get(to, to) for to in smaller.label]


def _idle_moves(problem: MaxLoadProblem) -> dict[int, int]:
    """Item -> the item to merge it into; a merged item is never a host."""
    touching: list[list[SharedValue]] = [[] for _ in problem.items]
    for value in problem.values:
        for item in value.items:
            touching[item].append(value)
    before: list[set[int]] = [set() for _ in problem.items]
    after: list[set[int]] = [set() for _ in problem.items]
    for a, b in problem.precedes:
        before[b].add(a)
        after[a].add(b)
    moves: dict[int, int] = {}
    taking: set[int] = set()
    for index, item in enumerate(problem.items):
        if any((item.accelerator_cost, item.cpu_cost, item.memory_bytes, item.barred)) or len(touching[index]) > 1:
            continue
        near = (before[index] or after[index]) if problem.contiguous else set()
        if near and (len(near) > 1 or (before[index] and after[index])):
            continue
        # An item without values may join any item: the first item, or the second for the first.
        hosts = set(touching[index][0].items) if touching[index] else near or set(range(min(2, len(problem.items))))
        hosts = (hosts & near if near else hosts) - {index}
        host = min(hosts - moves.keys(), default=None)
        if host is not None and index not in taking:
            moves[index] = host
            taking.add(host)
    return moves
