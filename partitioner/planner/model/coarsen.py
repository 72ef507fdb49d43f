"""Coarsen an op graph to few items: where more remain than are asked for, light ones join their neighbours."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.lossless import lossless

DEFAULT_MAX_ITEMS = 64
# Of the most bytes that an item exchanges with a neighbour, the share that counts as much, too.
_MUCH = 0.5


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
    return with_lightest_joined(costed, lossless(costed, constraints), max_items)


def with_lightest_joined(costed: CostedGraph, coarsening: Coarsening, max_items: int) -> Coarsening:
    """The same items; while there are more, the lightest joins the neighbour with which it exchanges most."""
    if len(coarsening.items) <= max_items:
        return coarsening
    parts = _Parts(costed, coarsening)
    for neighbours in (parts.in_line, parts.any_neighbour):
        while parts.count > max_items and parts.join_lightest(neighbours):
            pass
    return coarsening.joined(costed.graph, parts.groups)


class _Parts:
    """The items as a graph that shrinks: their seconds, the bytes between them, and the order of their forward ops."""

    def __init__(self, costed: CostedGraph, coarsening: Coarsening) -> None:
        graph, item_of = costed.graph, coarsening.item_of
        everything = range(len(coarsening.items))
        self._allowed = dict(enumerate(coarsening.allowed))
        self._members = {item: [item] for item in everything}
        self._place = dict(zip(everything, everything, strict=True))
        self._seconds = dict.fromkeys(everything, 0.0)
        self._traffic: dict[int, dict[int, int]] = {item: {} for item in everything}
        self._before: dict[int, set[int]] = {item: set() for item in everything}
        self._behind: dict[int, set[int]] = {item: set() for item in everything}
        for op, seconds in zip(graph.ops, costed.fastest_seconds, strict=True):
            here = item_of[op.name]
            self._seconds[here] += seconds
            for name in op.inputs:
                maker = graph.op[graph.tensor[name].producer]
                source = item_of[maker.name]
                if source == here:
                    continue
                for a, b in ((source, here), (here, source)):
                    self._traffic[a][b] = self._traffic[a].get(b, 0) + graph.tensor[name].size_bytes + 1
                if op.phase is Phase.FORWARD and maker.type != "Const":
                    self._behind[source].add(here)
                    self._before[here].add(source)

        self._queue = [(seconds, item, item) for item, seconds in self._seconds.items()]
        heapq.heapify(self._queue)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._members)

    @property
    def groups(self) -> Iterable[Sequence[int]]:
        """The items that each part has."""
        return self._members.values()

    def in_line(self, part: int) -> list[int]:
        """Neighbours that an item may join so that no third item runs between the two of them.

        That is so where one of both is all that is directly before or behind the other (J. Herrmann et al., "Acyclic
        partitioning of large directed acyclic graphs", 2017). The blocks of a Transformer, whose sums are in line only
        through them, would else end as one item of all sums.
        """
        before, behind = self._before[part], self._behind[part]
        return [
            *(other for other in before if len(before) == 1 or len(self._behind[other]) == 1),
            *(other for other in behind if len(behind) == 1 or len(self._before[other]) == 1),
        ]

    def any_neighbour(self, part: int) -> list[int]:
        """All neighbours."""
        return [*self._traffic[part]]

    def join_lightest(self, neighbours: Callable[[int], list[int]]) -> bool:
        """Let the lightest item that may join a neighbour do so; whether there is one.

        Of neighbours with which it exchanges much, it joins the lightest, so that items become alike.
        """
        passed_over, is_joined = [], False
        while self._queue and not is_joined:
            seconds, place, light = entry = heapq.heappop(self._queue)
            if (self._seconds.get(light), self._place.get(light)) != (seconds, place):
                continue  # it has joined another, or another has joined it
            partners = [part for part in neighbours(light) if self._may_join(part, light)]
            if not partners:
                passed_over.append(entry)
                continue
            most = max(self._traffic[light][part] for part in partners)
            near = [part for part in partners if self._traffic[light][part] >= _MUCH * most]
            heavy = min(near, key=lambda part: (self._seconds[part], self._place[part]))
            self._join(heavy, light)
            heapq.heappush(self._queue, (self._seconds[heavy], self._place[heavy], heavy))
            is_joined = True
        for entry in passed_over:
            heapq.heappush(self._queue, entry)
        return is_joined

    def _may_join(self, one: int, other: int) -> bool:
        a, b = self._allowed[one], self._allowed[other]
        return a <= b or b <= a

    def _join(self, heavy: int, light: int) -> None:
        self._members[heavy] += self._members.pop(light)
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
