"""The least step of a schedule over all cuts into stages: a linear program over the longest paths of its calls.

Each call waits for the call before it on its device, and for the call that its microbatch comes from. The step takes
as long as the longest path through these calls, whose seconds are linear in the seconds of the stages. Which paths
matter depends on the cut, so that they are found one by one: the program gives the cut with the least longest path of
those known, and the longest path of that cut is added, until it is no longer than the program says. Every answer on the
way is a bound: it knows fewer paths than there are.

To the program items are divisible: a stage ends anywhere in the convex hull of the running sums of forward and
backward. Branching keeps stages from ending within items: behind the item at the latest, or at its end at the earliest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import merged_order

Floats = NDArray[np.float64]
Ranges = tuple[tuple[int, int], ...]
"""For each boundary between stages, the first and the last position at which it may be."""

# Paths that are looked for in one place, and calls that are looked at for all of them: a bound may end early.
_MOST_PATHS, _MOST_CALLS = 60, 200_000
# Edges of a hull that are kept: fewer bound less.
_MOST_EDGES = 16
# A path that is longer by no more than this share is none that the program lacks.
_ENOUGH = 1e-4
# What the solver of linear programs may be off by.
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class CutItems:
    """Running sums over n items in order, each of the shape `(n + 1,)`, and what any call and any boundary costs.

    Attributes:
        forward: Seconds of a microbatch forward.
        backward: Seconds of it backward; 0 in inference.
        summing: Seconds of the sums of gradients over replicas.
        call: Seconds of a call beyond its work.
        there: Seconds of a microbatch over a boundary, at the least.
        back: Seconds of its gradients.
    """

    forward: Floats
    backward: Floats
    summing: Floats
    call: float
    there: float
    back: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStep:
    """A bound on the step of all cuts, without updates, and the best cut that was seen on the way.

    Attributes:
        seconds: The bound.
        ends: Positions at which its stages end; empty where none was seen.
        found_seconds: The longest path of this cut, with the sums of its first stage.
    """

    seconds: float
    ends: tuple[int, ...]
    found_seconds: float


def least_step(
    items: CutItems,
    orders: Mapping[str, Sequence[Action]],
    ranges: Sequence[tuple[int, int]],
    going_back: range,
    *,
    enough: float = np.inf,
    most_branches: int = 0,
) -> LeastStep:
    """Bound the step of all cuts into stages.

    Args:
        items: What is cut.
        orders: The actions of each device, in order.
        ranges: Where stages but the last may end; each stage waits for the one before.
        going_back: The stages with a backward, which but for the last waits for the one behind. The others hold no item
            with a backward.
        enough: A bound so large needs not be larger.
        most_branches: How often to branch.
    """
    search = _Search(items, orders, len(ranges) + 1, going_back)
    search.visit(ranges, 0.0)
    for _ in range(most_branches):
        if not search.branches(enough):
            break
    return search.found()


@dataclass(order=True, slots=True)
class _Node:
    """Cuts with ends in some ranges, by a bound on their steps; what the program says of them, if it could be had."""

    seconds: float
    ranges: Ranges
    solved: _Solved | None = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A step, the longest known path without the sums behind it, and the running sums at the ends of stages."""

    step: float
    longest_known: float
    forward: Floats
    backward: Floats


def longest_path_seconds(
    items: CutItems, orders: Mapping[str, Sequence[Action]], forward: Floats, backward: Floats, going_back: range
) -> float:
    """The longest path where stages take so many seconds `(stages,)` for a microbatch; the rest as in `least_step`."""
    return _Calls(items, orders, len(forward), going_back).longest_path(forward, backward).seconds


class _Search:
    """Best first over ranges of ends; all of them share the program and its paths."""

    def __init__(
        self, items: CutItems, orders: Mapping[str, Sequence[Action]], num_stages: int, going_back: range
    ) -> None:
        self._items, self._has_sums = items, 0 in going_back
        self._calls = _Calls(items, orders, num_stages, going_back)
        self._program = _Program(items, num_stages, has_sums=self._has_sums)
        self._most_paths = max(2, min(_MOST_PATHS, _MOST_CALLS // self._calls.count))
        self._nodes: list[_Node] = []
        self._ends: tuple[int, ...] = ()
        self._found_seconds = np.inf

    def visit(self, ranges: Sequence[tuple[int, int]], least_seconds: float) -> None:
        """Bound the cuts with ends in these ranges, which take so long at the least, and try one of them."""
        ranges = _in_order(ranges)
        if any(first > last for first, last in ranges):
            return
        solved = self._settled(ranges)
        if solved is None:
            heapq.heappush(self._nodes, _Node(least_seconds, ranges, None))
            return
        self._try(_rounded(self._items, solved, ranges))
        if solved.step < self._found_seconds:
            heapq.heappush(self._nodes, _Node(max(least_seconds, solved.step), ranges, solved))

    def branches(self, enough: float) -> bool:
        """Branch where the bound is least, unless it is large enough."""
        least = self._nodes[0] if self._nodes else None
        if least is None or least.solved is None or least.seconds >= min(enough, self._found_seconds * (1 - _ENOUGH)):
            return False
        within = _within_item(self._items, least.solved, least.ranges)
        if within is None:
            return False
        heapq.heappop(self._nodes)
        boundary, position = within
        first, last = least.ranges[boundary]
        for part in ((first, position), (position + 1, last)):
            self.visit((*least.ranges[:boundary], part, *least.ranges[boundary + 1 :]), least.seconds)
        return True

    def found(self) -> LeastStep:
        """The bound so far, and the best cut."""
        least = min([self._found_seconds, *(node.seconds for node in self._nodes)])
        return LeastStep(seconds=least * (1 - _TOLERANCE), ends=self._ends, found_seconds=self._found_seconds)

    def _settled(self, ranges: Ranges) -> _Solved | None:
        """The answer of the program once no path is missing, or after many."""
        solved = None
        for _ in range(self._most_paths):
            solved = self._program.solve(ranges)
            if solved is None:
                return None
            path = self._calls.longest_path(np.diff(solved.forward), np.diff(solved.backward))
            if path.seconds <= solved.longest_known * (1 + _ENOUGH):
                break
            self._program.add(path)
        return solved

    def _try(self, ends: Sequence[int]) -> None:
        forward, backward = (
            np.diff(sums[[0, *ends, len(sums) - 1]]) for sums in (self._items.forward, self._items.backward)
        )
        sums = float(self._items.summing[ends[0]]) if self._has_sums else 0.0
        seconds = self._calls.longest_path(forward, backward).seconds + sums
        if seconds < self._found_seconds:
            self._ends, self._found_seconds = tuple(ends), seconds


def _rounded(items: CutItems, solved: _Solved, ranges: Ranges) -> list[int]:
    """The positions nearest to where the program ends stages, each behind the one before."""
    both, ends = items.forward + items.backward, list[int]()
    for (first, last), wanted in zip(ranges, (solved.forward + solved.backward)[1:-1], strict=True):
        first = max(first, ends[-1] + 1 if ends else first)
        ends.append(first + int(np.abs(both[first : last + 1] - wanted).argmin()))
    return ends


def _within_item(items: CutItems, solved: _Solved, ranges: Ranges) -> tuple[int, int] | None:
    """The boundary that is farthest from any position, and the position before it; None where all are at one."""
    both, farthest, found = items.forward + items.backward, 1e-9 * float(items.forward[-1] + items.backward[-1]), None
    for boundary, ((first, last), wanted) in enumerate(
        zip(ranges, (solved.forward + solved.backward)[1:-1].tolist(), strict=True)
    ):
        distance = float(np.abs(both[first : last + 1] - wanted).min())
        if first < last and distance > farthest:
            position = first + int(np.searchsorted(both[first : last + 1], wanted, side="right")) - 1
            farthest, found = distance, (boundary, min(max(position, first), last - 1))
    return found


def _in_order(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges without the positions that leave none to boundaries before or behind; empty where there is no cut."""
    firsts, lasts = (list(positions) for positions in zip(*ranges, strict=True))
    for index in range(1, len(firsts)):
        firsts[index] = max(firsts[index], firsts[index - 1] + 1)
    for index in range(len(lasts) - 2, -1, -1):
        lasts[index] = min(lasts[index], lasts[index + 1] - 1)
    return tuple(zip(firsts, lasts, strict=True))


@dataclass(frozen=True, slots=True)
class _Path:
    """The longest path: its seconds, how often each stage works forward and backward on it, and all else on it."""

    seconds: float
    forwards: NDArray[np.intp]
    backwards: NDArray[np.intp]
    fixed: float


class _Calls:
    """All calls of a step, and what each of them waits for."""

    def __init__(
        self, items: CutItems, orders: Mapping[str, Sequence[Action]], num_stages: int, going_back: range
    ) -> None:
        def runs(action: Action) -> bool:
            return action.kind is ActionKind.FORWARD or action.stage in going_back

        device_of = {action.stage: device for device, actions in orders.items() for action in actions}
        self._order = list(filter(runs, merged_order(orders, num_stages)))
        index = {action: number for number, action in enumerate(self._order)}
        before = {b: a for actions in orders.values() for a, b in pairwise(filter(runs, actions))}
        self._call, self._num_stages = items.call, num_stages
        # A last backward of the first stage is what sums of its gradients wait for.
        self._last = max((n for a, n in index.items() if a.stage == 0 and a.kind is ActionKind.BACKWARD), default=None)
        self._waits: list[list[tuple[int, float]]] = []
        for action in self._order:
            waits = [(index[before[action]], 0.0)] if action in before else []
            other = next(filter(index.__contains__, _makers(action)), None)
            if other is not None:
                hop = items.there if action.kind is ActionKind.FORWARD else items.back
                is_far = device_of[other.stage] != device_of[action.stage]
                waits.append((index[other], hop if is_far else 0.0))
            self._waits.append(waits)

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self._order)

    def longest_path(self, forward: Floats, backward: Floats) -> _Path:
        """The longest path where stages take so many seconds `(stages,)` for a microbatch."""
        seconds = {
            ActionKind.FORWARD: (forward + self._call).tolist(),
            ActionKind.BACKWARD: (backward + self._call).tolist(),
        }
        ends: list[float] = []
        latest: list[tuple[int, float] | None] = []
        for action, waits in zip(self._order, self._waits, strict=True):
            start, last = 0.0, None
            for wait in waits:
                if (ready := ends[wait[0]] + wait[1]) > start:
                    start, last = ready, wait
            ends.append(start + seconds[action.kind][action.stage])
            latest.append(last)
        at = int(np.argmax(ends)) if self._last is None else self._last
        longest, fixed = ends[at], 0.0
        counts = {kind: np.zeros(self._num_stages, dtype=np.intp) for kind in seconds}
        step: tuple[int, float] | None = (at, 0.0)
        while step is not None:
            action = self._order[step[0]]
            counts[action.kind][action.stage] += 1
            fixed += self._call + step[1]
            step = latest[step[0]]
        return _Path(longest, counts[ActionKind.FORWARD], counts[ActionKind.BACKWARD], fixed)


def _makers(action: Action) -> Iterator[Action]:
    """What an action's microbatch comes from: the first of these that there is."""
    stage, kind, microbatch = action.stage, action.kind, action.microbatch
    if kind is ActionKind.FORWARD:
        yield Action(stage - 1, ActionKind.FORWARD, microbatch)
    else:
        yield Action(stage + 1, ActionKind.BACKWARD, microbatch)
        yield Action(stage, ActionKind.FORWARD, microbatch)


class _Program:
    """The linear program: where stages end, such that the longest of the known paths is shortest.

    Seconds are given to it as shares of those of all items, so that its tolerances mean the same for every model.
    """

    def __init__(self, items: CutItems, num_stages: int, *, has_sums: bool) -> None:
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")  # it has no types
        self._unit = max(float(items.forward[-1] + items.backward[-1]), 1e-12)
        self._ways = [_parameters(is_warm=True), _parameters(is_warm=False)]
        endless = self._solver.infinity()
        self._sums_of_items = [sums / self._unit for sums in (items.forward, items.backward)]
        self._ends = [
            [0.0, *(self._solver.NumVar(0.0, endless, "") for _ in range(num_stages - 1)), float(sums[-1])]
            for sums in self._sums_of_items
        ]
        self._step = self._solver.NumVar(0.0, endless, "")
        self._solver.Minimize(self._step)
        for ends in self._ends:
            for start, end in pairwise(ends):
                self._solver.Add(end - start >= 0.0)
        forward, backward = self._sums_of_items
        for ahead, behind in zip(*(ends[1:-1] for ends in self._ends), strict=True):
            for x, y, slope in _lower_edges(forward, backward):
                self._solver.Add(behind - slope * ahead >= y - slope * x)
            for x, y, slope in _lower_edges(forward, -backward):
                self._solver.Add(-behind - slope * ahead >= y - slope * x)
        # The sums of the first stage follow its last backward, and that is the last of all.
        self._sums: Any = 0.0
        if has_sums:
            self._sums = self._solver.NumVar(0.0, endless, "")
            for x, y, slope in _lower_edges(forward[1:], items.summing[1:] / self._unit):
                self._solver.Add(self._sums - slope * self._ends[0][1] >= y - slope * x)

    def add(self, path: _Path) -> None:
        """Know one more path."""
        work: Any = path.fixed / self._unit + self._sums
        for ends, counts in zip(self._ends, (path.forwards, path.backwards), strict=True):
            for (start, end), count in zip(pairwise(ends), counts.tolist(), strict=True):
                if count:
                    work += count * (end - start)
        self._solver.Add(self._step >= work)

    def solve(self, ranges: Ranges) -> _Solved | None:
        """What the paths known so far leave to ends in these ranges; None where GLOP gives up."""
        for sums, ends in zip(self._sums_of_items, self._ends, strict=True):
            for end, (first, last) in zip(ends[1:-1], ranges, strict=True):
                end.SetBounds(float(sums[first]), float(sums[last]))
        if not any(self._solver.Solve(how) == pywraplp.Solver.OPTIMAL for how in self._ways):
            return None
        forward, backward = (np.array([_value(end) for end in ends]) * self._unit for ends in self._ends)
        step = _value(self._step) * self._unit
        longest = step - _value(self._sums) * self._unit
        return _Solved(step=step, longest_known=longest, forward=forward, backward=backward)


def _parameters(*, is_warm: bool) -> Any:
    """How GLOP solves: from the last basis, which new paths leave dual feasible, or anew where it gives up so."""
    parameters: Any = pywraplp.MPSolverParameters()
    if is_warm:
        parameters.SetIntegerParam(parameters.LP_ALGORITHM, parameters.DUAL)
        parameters.SetIntegerParam(parameters.PRESOLVE, parameters.PRESOLVE_OFF)
    else:
        parameters.SetIntegerParam(parameters.INCREMENTALITY, parameters.INCREMENTALITY_OFF)
    return parameters


def _value(variable: Any) -> float:
    return variable if isinstance(variable, float) else variable.solution_value()


def _lower_edges(x: Floats, y: Floats) -> list[tuple[float, float, float]]:
    """Edges of the lower convex hull of points, x not decreasing: a point of each, and its slope."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        if hull and point[0] <= hull[-1][0] + 1e-12:
            continue  # the first, lowest, of several at one place
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    edges = [(x0, y0, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(hull)]
    return edges[:: max(1, -(-len(edges) // _MOST_EDGES))]


def _is_above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
