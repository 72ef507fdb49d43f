"""A coarsening: the items of a graph, which are what is placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from partitioner.ir.op_graph import OpGraph


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

    @classmethod
    def of(
        cls, graph: OpGraph, sets: Mapping[str, Iterable[int]], root_of: Mapping[str, str], *, is_lossless: bool
    ) -> Coarsening:
        """The coarsening whose items are sets of ops.

        Args:
            graph: The graph.
            sets: The devices that each set may take.
            root_of: The set of each op.
            is_lossless: As above.
        """
        members: dict[str, list[str]] = {}
        for op in graph.ops:
            members.setdefault(root_of[op.name], []).append(op.name)
        items = tuple(map(tuple, members.values()))
        return cls(
            items=items,
            item_of={name: index for index, ops in enumerate(items) for name in ops},
            names=tuple(next((graph.op[n].layer for n in ops if graph.op[n].layer), ops[0]) for ops in items),
            is_lossless=is_lossless,
            allowed=tuple(frozenset(sets[root]) for root in members),
        )

    def joined(self, graph: OpGraph, groups: Iterable[Sequence[int]]) -> Coarsening:
        """The same with the items of each group made one, for the sake of size; each item is in one group."""
        root_of: dict[str, str] = {}
        allowed: dict[str, frozenset[int]] = {}
        for group in groups:
            root = self.items[group[0]][0]
            root_of |= {name: root for item in group for name in self.items[item]}
            allowed[root] = reduce(and_, (self.allowed[item] for item in group))
        is_lossless = self.is_lossless and len(allowed) == len(self.items)
        return Coarsening.of(graph, allowed, root_of, is_lossless=is_lossless)

    def placement(self, assignment: Sequence[int]) -> dict[str, int]:
        """Device index by op, from that of each item."""
        return {op: assignment[item] for op, item in self.item_of.items()}

    def anywhere(self, num_devices: int) -> Coarsening:
        """The same items, each allowed on all of so many devices."""
        return replace(self, allowed=(frozenset(range(num_devices)),) * len(self.items))
