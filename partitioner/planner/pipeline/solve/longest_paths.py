"""Which cut into stages has the least step in a schedule: by its longest paths, and by branching.

Which paths through the calls of a step matter depends on the cut, so that a few are found at a time: the linear program
(`cut_program.py`) gives the cut with the least longest path of those known, and the longest paths of that cut to the
ends of some devices are added, until none is longer than the program says. Every answer on the way is a bound: it knows
fewer paths than there are.

Branching keeps stages from ending within items, as they may in the program: behind the item at the latest, or at its
end at the earliest. A stage that leaves gradients of weights for later has a call for them. Whether it does depends on
where it ends, so branching begins with that: either all stages do that may, or one of them lies between two items that
leave something.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from partitioner.planner.pipeline.calls import Calls
from partitioner.planner.pipeline.solve.cut_program import ANY, NONE, TOLERANCE, CutProgram, Items, Ranges, Solved
from partitioner.planner.pipeline.solve.problem import CutProblem
from partitioner.stages.actions import Action

# Programs that are solved for one node, with more paths each, and calls that are looked at for them: a bound may end
# early.
_MOST_PROGRAMS, _MOST_CALLS = 60, 200_000
# Paths that are added at a time, to the ends of different devices: programs with more take longer to solve.
_MOST_ADDED = 3
# To solve a program takes as long, for each stage, as to look at so many calls.
_CALLS_OF_A_STAGE = 500
# A path that is longer by no more than this share is none that the program lacks.
_ENOUGH = 2e-5


@dataclass(order=True, slots=True)
class _Node:
    """Cuts with ends in some ranges, by a bound on their steps; what the program says of them, if it could be had.

    Of the stages that may leave gradients of weights for later, `idle` leaves none. It is a stage, or `NONE` if all
    leave some, or `ANY` if that is open.
    """

    seconds: float
    ranges: Ranges
    solved: Solved | None = field(compare=False)
    idle: int = field(compare=False)
    is_visited: bool = field(default=True, compare=False)


class CutSearch:
    """The least step of all cuts of a row of items, best first over ranges of ends; all share a program and its paths.

    Args:
        problem: The items, and what calls and boundaries cost.
        orders: The actions of each device, in order.
        ranges: Where stages but the last may end; at least two stages.
        going_back: The stages with a backward, which but for the last waits for the one behind. The others hold no item
            with a backward.

    Attributes:
        ends: Where stages but the last end in the best cut that was seen; empty where none was.
        estimated_seconds: Its step, by all that crosses where they end.
        found_seconds: The least step of those seen, by what hops take at the least.
        num_calls: In which paths were looked for, and what it takes to solve a program besides.
    """

    def __init__(
        self,
        problem: CutProblem,
        orders: Mapping[str, Sequence[Action]],
        ranges: Ranges,
        going_back: range,
        enough: float,
    ) -> None:
        self._problem, self._items = problem, Items(problem)
        self._calls = Calls(orders, problem.devices, going_back)
        self._least_hops = problem.there_seconds, problem.back_seconds
        self._program = CutProgram(problem, self._items, self._calls, ranges, going_back)
        self._nodes: list[_Node] = []
        self.ends: tuple[int, ...] = ()
        self.found_seconds = self.estimated_seconds = math.inf
        self.num_calls = 0
        self._visit(ranges, 0.0, ANY if self._program.leaving else NONE, enough)

    @property
    def bound_seconds(self) -> float:
        """The bound so far; infinite where there is no cut."""
        return min([self.found_seconds, *(node.seconds for node in self._nodes)]) * (1 - TOLERANCE)

    def branch(self, enough: float, most: int) -> bool:
        """Branch some times where the bound is least, unless it is large enough; whether there is more to do."""
        return all(self._branch(enough) for _ in range(most))

    def _visit(self, ranges: Sequence[tuple[int, int]], least_seconds: float, idle: int, enough: float) -> None:
        """Bound the cuts of a node with ends in these ranges, which take so long at the least, and try one of them."""
        ranges = _in_order(ranges)
        if any(first > last for first, last in ranges):
            return
        if idle >= 0 and self._program.certainly_leaves(idle, ranges):
            return
        solved = self._settled(ranges, idle, enough)
        if solved is None:
            heapq.heappush(self._nodes, _Node(least_seconds, ranges, None, idle))
            return
        self._try(_rounded(self._items, solved, ranges))
        if solved.step < self.found_seconds:
            heapq.heappush(self._nodes, _Node(max(least_seconds, solved.step), ranges, solved, idle))

    def _branch(self, enough: float) -> bool:
        least = self._nodes[0] if self._nodes else None
        if least is None or least.seconds >= min(enough, self.found_seconds * (1 - _ENOUGH)):
            return False
        if not least.is_visited:
            heapq.heappop(self._nodes)
            self._visit(least.ranges, least.seconds, least.idle, enough)
            return True
        parts = [*self._parts(least)]
        if parts:
            heapq.heappop(self._nodes)
        for ranges, idle in parts:
            heapq.heappush(self._nodes, _Node(least.seconds, ranges, None, idle, is_visited=False))
        return bool(parts)

    def _parts(self, node: _Node) -> Iterator[tuple[Ranges, int]]:
        """Ranges, and which stage leaves nothing, of the nodes that one is split into; none where it cannot be."""
        if node.solved is None:
            return
        if node.idle == ANY:
            yield from ((node.ranges, idle) for idle in (NONE, *self._program.leaving))
        elif (farthest := _farthest(self._items, node.solved, node.ranges)) is not None:
            boundary, position = farthest
            first, last = node.ranges[boundary]
            for part in ((first, position), (position + 1, last)):
                yield (*node.ranges[:boundary], part, *node.ranges[boundary + 1 :]), node.idle

    def _settled(self, ranges: Ranges, idle: int, enough: float) -> Solved | None:
        """The answer of the program once no path is missing, or it says enough, or after many."""
        solved = None
        for _ in range(max(2, min(_MOST_PROGRAMS, _MOST_CALLS // self._calls.count))):
            self.num_calls += self._calls.count + _CALLS_OF_A_STAGE * self._calls.num_stages
            solved = self._program.solve(ranges, idle)
            if solved is None or solved.step >= enough:
                break
            known = solved.step * (1 + _ENOUGH) - solved.updating
            devices = solved.once, solved.summing
            paths = self._calls.longest_paths(solved.calls, self._least_hops, *devices, known, _MOST_ADDED)
            if not paths:
                break
            for path in paths:
                self._program.add(path)
        return solved

    def _try(self, ends: Sequence[int]) -> None:
        of_stages = (np.diff(sums[[0, *ends, len(sums) - 1]]) for sums in self._items)
        forward, backward, weights, once, *others = of_stages
        once = self._calls.with_calls(once, self._problem.call_seconds)
        seconds = self._calls.seconds_of(forward, backward, weights, self._problem.call_seconds)
        found, estimated = (
            self._calls.step_seconds(seconds, hops, once, *others) + self._problem.update_call_seconds
            for hops in (self._least_hops, self._problem.hop_seconds(ends))
        )
        self.found_seconds = min(self.found_seconds, found)
        if estimated < self.estimated_seconds:
            self.ends, self.estimated_seconds = tuple(ends), estimated


def _rounded(items: Items, solved: Solved, ranges: Ranges) -> list[int]:
    """The positions nearest to where the program ends stages, each behind the one before."""
    both, ends = items.forward + items.backward, list[int]()
    for (first, last), wanted in zip(ranges, (solved.forward + solved.backward)[1:-1], strict=True):
        first = max(first, ends[-1] + 1 if ends else first)
        ends.append(first + int(np.abs(both[first : last + 1] - wanted).argmin()))
    return ends


def _farthest(items: Items, solved: Solved, ranges: Ranges) -> tuple[int, int] | None:
    """The boundary that is farthest from any position, and the position before it; None where no boundary may move."""
    both, found = items.forward + items.backward, list[tuple[float, int, int]]()
    for boundary, (first, last) in enumerate(ranges):
        if first < last:
            forward, backward = solved.forward[boundary + 1], solved.backward[boundary + 1]
            positions = slice(first, last + 1)
            away = np.maximum(np.abs(items.forward[positions] - forward), np.abs(items.backward[positions] - backward))
            before = first + int(np.searchsorted(both[positions], forward + backward, side="right")) - 1
            found.append((-float(away.min()), boundary, min(max(before, first), last - 1)))
    return min(found)[1:] if found else None


def _in_order(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges without the positions that leave none to boundaries before or behind; empty where there is no cut."""
    firsts, lasts = (list(positions) for positions in zip(*ranges, strict=True))
    for index in range(1, len(firsts)):
        firsts[index] = max(firsts[index], firsts[index - 1] + 1)
    for index in range(len(lasts) - 2, -1, -1):
        lasts[index] = min(lasts[index], lasts[index + 1] - 1)
    return tuple(zip(firsts, lasts, strict=True))
