"""Large problems in near-linear time: put the items in an order with neighbours close together, and cut it evenly."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import networkx as nx
from networkx.utils import cuthill_mckee_ordering

from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.problem import MaxLoadProblem

LARGE = 5_000
"""With more items, only near-linear methods run; the largest public workload has 2,012 nodes."""

_HALVINGS = 20
_CLOSE = 1e-3


def linear_orders(problem: MaxLoadProblem) -> Iterator[tuple[int, ...]]:
    """Orders of the items, the order with the closest neighbours first; contiguous pieces can be cut from all.

    The order is that of E. Cuthill and J. McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969: the
    backward pass of a layer is beside its forward pass, because both are equally far from the input.
    """
    near: nx.Graph = nx.Graph()
    near.add_nodes_from(range(len(problem.items)))
    for value in problem.values:
        near.add_edges_from((value.items[0], other) for other in value.items[1:])
    order = tuple(cuthill_mckee_ordering(near))
    if not problem.contiguous:
        yield order
    else:
        yield _obeying(problem, order)
        yield _obeying(problem, order[::-1])


def cut_evenly(problem: MaxLoadProblem, order: Sequence[int]) -> tuple[int, ...] | None:
    """Cut the order into a piece for each device in turn, with a small largest load; None if no cut is found.

    Bisects the load; for each load, every device in turn takes the longest piece within it.
    """
    low, high = quick_bound(problem), 2 * quick_bound(problem) + sum(value.cost for value in problem.values)
    pieces = _Pieces(problem, order)
    best = pieces.within(high)
    for _ in range(_HALVINGS):
        if best is None or high - low <= _CLOSE * high:
            break
        middle = (low + high) // 2
        assignment = pieces.within(middle)
        if assignment is not None:
            best, high = assignment, middle
        else:
            low = middle + 1
    return best


class _Pieces:
    """Cuts an order for different loads."""

    def __init__(self, problem: MaxLoadProblem, order: Sequence[int]) -> None:
        self._problem, self._order = problem, order
        self._touching: list[list[int]] = [[] for _ in problem.items]
        for index, value in enumerate(problem.values):
            for item in value.items:
                self._touching[item].append(index)
        self._sizes = [len(value.items) for value in problem.values]
        self._costs = [value.cost for value in problem.values]

    def within(self, load: int) -> tuple[int, ...] | None:
        """An assignment in which no device has more than this load; None if there is none."""
        assignment = [0] * len(self._order)
        begin = 0
        for device in range(len(self._problem.devices)):
            end = self._longest(device, begin, load)
            for item in self._order[begin:end]:
                assignment[item] = device
            begin = end
            if begin == len(self._order):
                return tuple(assignment)
        return None

    def _longest(self, device: int, begin: int, most: int) -> int:
        """The end of the longest piece from `begin` on that is within the load `most` of a device."""
        place, items = self._problem.devices[device], self._problem.items
        capacity = place.capacity_bytes
        work = held = moved = 0
        inside: dict[int, int] = {}
        longest = begin
        for end in range(begin, len(self._order)):
            index = self._order[end]
            item = items[index]
            work += item.cost_on(place)
            held += item.memory_bytes
            if work > most or device in item.barred or (capacity is not None and held > capacity):
                break
            if not place.is_cpu:
                for value in self._touching[index]:
                    count = inside.get(value, 0) + 1
                    inside[value] = count
                    if count == 1:
                        moved += self._costs[value]
                    if count == self._sizes[value]:
                        moved -= self._costs[value]
            if work + moved <= most:
                longest = end + 1
        return longest


def _obeying(problem: MaxLoadProblem, order: Sequence[int]) -> tuple[int, ...]:
    """The items in an order that `precedes` allows, otherwise in the given order."""
    place = {item: index for index, item in enumerate(order)}
    followers: list[list[int]] = [[] for _ in problem.items]
    waiting = [0] * len(problem.items)
    for a, b in problem.precedes:
        followers[a].append(b)
        waiting[b] += 1
    ready = [place[item] for item, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    obeying = []
    while ready:
        item = order[heapq.heappop(ready)]
        obeying.append(item)
        for follower in followers[item]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, place[follower])
    return tuple(obeying)
