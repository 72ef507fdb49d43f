"""The least step of a schedule over all cuts into stages: a linear program over the longest paths of its calls.

Each call waits for the call before it on its device, and for the call that its microbatch comes from. The step takes
as long as the longest path through these calls, from what its first device does before to the sums of gradients of its
last, and then the longest updates; all of that is linear in the seconds of the stages. Which paths matter depends on
the cut, so that they are found one by one: the program gives the cut with the least longest path of those known, and
the longest path of that cut is added, until it is no longer than the program says. Every answer on the way is a bound:
it knows fewer paths than there are.

To the program items are divisible: a stage ends anywhere in the convex hull of the running sums of forward and
backward. Branching keeps stages from ending within items: behind the item at the latest, or at its end at the earliest.

A stage that leaves gradients of weights for later has a call for them. Whether it does depends on where it ends, so
branching begins with that: either all stages do that may, or one of them lies between two items that leave something.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from partitioner.planner.pipeline.calls import Calls, CallSeconds, Path
from partitioner.planner.pipeline.solve.problem import CutProblem
from partitioner.stages.actions import Action, ActionKind

Floats = NDArray[np.float64]
Ranges = tuple[tuple[int, int], ...]
"""For each boundary between stages, the first and the last position at which it may be."""

# Paths that are looked for in one place, and calls that are looked at for all of them: a bound may end early.
_MOST_PATHS, _MOST_CALLS = 60, 200_000
# To solve a program takes as long as to look at so many calls.
_CALLS_OF_A_PROGRAM = 100
# Edges of a hull that are kept: fewer bound less. Short ones are too steep for arithmetic.
_MOST_EDGES, _SHORTEST_EDGE = 16, 1e-7
# A path that is longer by no more than this share is none that the program lacks.
_ENOUGH = 1e-4
# Of all items, what a running sum is rounded to: edges between sums that differ by rounding alone make the solver of
# linear programs turn in a circle, as a last item that leaves 1e-18 s for later does.
_DIGITS = 9
# Of that solver, for each stage. It needs far fewer, or would not end.
_MOST_ITERATIONS = 500
# What the solver and these digits may be off by.
_TOLERANCE = 1e-6
# In place of a stage that leaves nothing for later: none, or any.
_NONE, _ANY = -1, -2


class _Items:
    """The running sums of a problem, as arrays `(n + 1,)`."""

    def __init__(self, problem: CutProblem) -> None:
        self.forward = np.array(problem.forward)
        self.backward = np.array(problem.backward)
        self.weights = np.array(problem.weights)
        self.once = np.array(problem.once)
        self.summing = np.array(problem.summing)
        self.updating = np.array(problem.updating)

    def __iter__(self) -> Iterator[Floats]:
        """All of them, in this order."""
        return iter((self.forward, self.backward, self.weights, self.once, self.summing, self.updating))


@dataclass(order=True, slots=True)
class _Node:
    """Cuts with ends in some ranges, by a bound on their steps; what the program says of them, if it could be had.

    Of the stages that may leave gradients of weights for later, `idle` leaves nothing, or none of them does not.
    """

    seconds: float
    ranges: Ranges
    solved: _Solved | None = field(compare=False)
    idle: int = field(compare=False)
    is_visited: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A step, the running sums at the ends of stages, and what calls and devices take then."""

    step: float
    forward: Floats
    backward: Floats
    calls: CallSeconds
    once: Floats
    summing: Floats
    updating: float


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
        self, problem: CutProblem, orders: Mapping[str, Sequence[Action]], ranges: Ranges, going_back: range
    ) -> None:
        self._problem, self._items = problem, _Items(problem)
        self._calls = Calls(
            orders,
            problem.devices,
            going_back,
            there_seconds=problem.there_seconds,
            back_seconds=problem.back_seconds,
        )
        self._program = _Program(problem, self._items, self._calls, going_back)
        self._most_paths = max(2, min(_MOST_PATHS, _MOST_CALLS // self._calls.count))
        self._nodes: list[_Node] = []
        self.ends: tuple[int, ...] = ()
        self.found_seconds = self.estimated_seconds = math.inf
        self.num_calls = 0
        self._visit(ranges, 0.0, _ANY if self._program.leaving else _NONE)

    @property
    def bound_seconds(self) -> float:
        """The bound so far; infinite where there is no cut."""
        return min([self.found_seconds, *(node.seconds for node in self._nodes)]) * (1 - _TOLERANCE)

    def branch(self, enough: float, most: int) -> bool:
        """Branch some times where the bound is least, unless it is large enough; whether there is more to do."""
        return all(self._branch(enough) for _ in range(most))

    def _visit(self, ranges: Sequence[tuple[int, int]], least_seconds: float, idle: int) -> None:
        """Bound the cuts of a node with ends in these ranges, which take so long at the least, and try one of them."""
        ranges = _in_order(ranges)
        if any(first > last for first, last in ranges):
            return
        if idle >= 0 and self._program.certainly_leaves(idle, ranges):
            return
        solved = self._settled(ranges, idle)
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
            self._visit(least.ranges, least.seconds, least.idle)
            return True
        if least.solved is None:
            return False
        if least.idle == _ANY:
            heapq.heappop(self._nodes)
            for idle in (_NONE, *self._program.leaving):
                heapq.heappush(self._nodes, _Node(least.seconds, least.ranges, None, idle, is_visited=False))
            return True
        farthest = _farthest(self._items, least.solved, least.ranges)
        if farthest is None:
            return False
        heapq.heappop(self._nodes)
        boundary, position = farthest
        first, last = least.ranges[boundary]
        for part in ((first, position), (position + 1, last)):
            ranges = (*least.ranges[:boundary], part, *least.ranges[boundary + 1 :])
            self._visit(ranges, least.seconds, least.idle)
        return True

    def _settled(self, ranges: Ranges, idle: int) -> _Solved | None:
        """The answer of the program once no path is missing, or after many."""
        solved = None
        for _ in range(self._most_paths):
            self.num_calls += self._calls.count + _CALLS_OF_A_PROGRAM
            solved = self._program.solve(ranges, idle)
            if solved is None:
                return None
            path = self._calls.longest_path(solved.calls, solved.once, solved.summing)
            if path.seconds + solved.updating <= solved.step * (1 + _ENOUGH):
                break
            self._program.add(path)
        return solved

    def _try(self, ends: Sequence[int]) -> None:
        of_stages = (np.diff(sums[[0, *ends, len(sums) - 1]]) for sums in self._items)
        forward, backward, weights, *others = of_stages
        seconds = self._calls.seconds_of(forward, backward, weights, self._problem.call_seconds)
        self.found_seconds = min(self.found_seconds, self._calls.step_seconds(seconds, *others))
        estimated = self._calls.over(*self._problem.hop_seconds(ends)).step_seconds(seconds, *others)
        if estimated < self.estimated_seconds:
            self.ends, self.estimated_seconds = tuple(ends), estimated


def _rounded(items: _Items, solved: _Solved, ranges: Ranges) -> list[int]:
    """The positions nearest to where the program ends stages, each behind the one before."""
    both, ends = items.forward + items.backward, list[int]()
    for (first, last), wanted in zip(ranges, (solved.forward + solved.backward)[1:-1], strict=True):
        first = max(first, ends[-1] + 1 if ends else first)
        ends.append(first + int(np.abs(both[first : last + 1] - wanted).argmin()))
    return ends


def _farthest(items: _Items, solved: _Solved, ranges: Ranges) -> tuple[int, int] | None:
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


class _Program:
    """The linear program: where stages end, such that the longest of the known paths is shortest.

    A stage may leave for later what it can, or less: it leaves nothing where it recomputes. Seconds are given to the
    program as shares of those of all items, so that its tolerances mean the same for every model.
    """

    def __init__(self, problem: CutProblem, items: _Items, calls: Calls, going_back: range) -> None:
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")  # it has no types
        most_iterations = _MOST_ITERATIONS * calls.num_stages
        self._solver.SetSolverSpecificParametersAsString(f"max_number_of_iterations: {most_iterations}")
        self._unit = max(float(items.forward[-1] + items.backward[-1]), 1e-12)
        self._ways = [_parameters(is_warm=True), _parameters(is_warm=False)]
        self._bounded: list[tuple[Floats, list[Any]]] = []
        self._forward, self._backward, *others = (
            self._new_ends(np.round(sums / self._unit, _DIGITS), calls.num_stages) for sums in items
        )
        forward, backward, weights, *of_stages = (_parts(ends) for ends in (self._forward, self._backward, *others))
        leaving = going_back[1:] if items.weights[-1] else range(0)
        self._call, self._num_leaving = problem.call_seconds / self._unit, problem.num_leaving
        # The call for what a stage leaves, and the work that it may have, which is little if it leaves nothing.
        self._third_call: dict[int, Any] = {stage: self._new() for stage in leaving if problem.keeps[stage]}
        self._room = {stage: self._new() for stage in self._third_call}
        self._least_room = _longest_run(items.forward + items.backward, self._num_leaving) / self._unit
        for stage, room in self._room.items():
            self._solver.Add(forward[stage] + backward[stage] <= room)
        third = [self._third_call.get(stage, 0.0) for stage in range(calls.num_stages)]
        later: list[Any] = [0.0] * calls.num_stages
        for stage in leaving:
            part = weights[stage]
            later[stage] = part + third[stage] if problem.keeps[stage] else self._new(part)
        self._calls: dict[ActionKind, list[Any]] = {
            ActionKind.FORWARD: [work + self._call for work in forward],
            ActionKind.BACKWARD: [
                work + self._call + more - left for work, more, left in zip(backward, third, later, strict=True)
            ],
            ActionKind.WEIGHTS: later,
        }
        on_device = [np.flatnonzero(stages).tolist() for stages in calls.on_device]
        self._once, self._summing, updates = ([_sum(parts, stages) for stages in on_device] for parts in of_stages)
        self._step, self._updating = self._new(), self._new()
        for of_device in updates:
            self._solver.Add(self._updating >= of_device)
        self._solver.Minimize(self._step)

    def _new(self, most: Any = None) -> Any:
        variable = self._solver.NumVar(0.0, self._solver.infinity(), "")
        if most is not None:
            self._solver.Add(variable <= most)
        return variable

    def _new_ends(self, sums: Floats, num_stages: int) -> list[Any]:
        """Running sums at the ends of stages: in the convex hull of these and of those forward, the first ones."""
        if not sums[-1]:
            return [0.0] * (num_stages + 1)
        ends = [0.0, *(self._new() for _ in range(num_stages - 1)), float(sums[-1])]
        for part in _parts(ends):
            self._solver.Add(part >= 0.0)
        for forward, behind in [*zip(self._bounded[0][1], ends, strict=True)][1:-1] if self._bounded else ():
            for x, y, slope in _lower_edges(self._bounded[0][0], sums):
                self._solver.Add(behind - slope * forward >= y - slope * x)
            for x, y, slope in _lower_edges(self._bounded[0][0], -sums):
                self._solver.Add(-behind - slope * forward >= y - slope * x)
        self._bounded.append((sums, ends))
        return ends

    def add(self, path: Path) -> None:
        """Know one more path."""
        work: Any = path.hop_seconds / self._unit + self._updating
        work += self._once[path.first_device] + self._summing[path.last_device]
        for kind, counts in path.counts.items():
            for seconds, count in zip(self._calls[kind], counts.tolist(), strict=True):
                if count:
                    work += count * seconds
        self._solver.Add(self._step >= work)

    @property
    def leaving(self) -> Sequence[int]:
        """The stages that leave gradients of weights for later, if they have any."""
        return [*self._third_call]

    def certainly_leaves(self, stage: int, ranges: Ranges) -> bool:
        """Whether such a stage has any, wherever it starts and ends in these ranges."""
        limits = [(0, 0), *ranges, (len(self._num_leaving) - 1,) * 2]
        (_, start), (end, _) = limits[stage : stage + 2]
        return self._num_leaving[end] > self._num_leaving[start]

    def solve(self, ranges: Ranges, idle: int) -> _Solved | None:
        """What the paths known so far leave to the cuts of a node; None where GLOP gives up."""
        for sums, ends in self._bounded:
            for end, (first, last) in zip(ends[1:-1], ranges, strict=True):
                end.SetBounds(float(sums[first]), float(sums[last]))
        for stage, third in self._third_call.items():
            has_call = idle == _NONE or self.certainly_leaves(stage, ranges)
            third.SetBounds(*[self._call if has_call else 0.0] * 2)
            most = self._least_room if stage == idle else self._solver.infinity()
            self._room[stage].SetBounds(0.0, most * (1 + _TOLERANCE))
        if not any(self._solver.Solve(how) == pywraplp.Solver.OPTIMAL for how in self._ways):
            return None
        return _Solved(
            step=_value(self._step) * self._unit,
            forward=self._values(self._forward),
            backward=self._values(self._backward),
            calls={kind: self._values(seconds) for kind, seconds in self._calls.items()},
            once=self._values(self._once),
            summing=self._values(self._summing),
            updating=_value(self._updating) * self._unit,
        )

    def _values(self, parts: Iterable[Any]) -> Floats:
        return np.array([_value(part) for part in parts]) * self._unit


def _parts(ends: Sequence[Any]) -> list[Any]:
    return [end - start for start, end in pairwise(ends)]


def _sum(parts: Sequence[Any], stages: Sequence[int]) -> Any:
    return sum((parts[stage] for stage in stages), 0.0)


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


def _longest_run(sums: Floats, counts: Sequence[int]) -> float:
    """The most that running sums grow while counts stay as they are."""
    grown: dict[int, float] = {}
    firsts: dict[int, float] = {}
    for value, count in zip(sums.tolist(), counts, strict=True):
        grown[count] = value - firsts.setdefault(count, value)
    return max(grown.values())


def _lower_edges(x: Floats, y: Floats) -> list[tuple[float, float, float]]:
    """Edges of the lower convex hull of points, x not decreasing: a point of each, and its slope."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        if hull and point[0] == hull[-1][0]:
            continue  # the first, lowest, of several at one place
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    edges = [(x0, y0, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(hull) if x1 - x0 > _SHORTEST_EDGE]
    return edges[:: max(1, -(-len(edges) // _MOST_EDGES))]


def _is_above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
