"""The least step of a schedule over all cuts into stages, as far as some paths through its calls say: a linear program.

Each call waits for the call before it on its device, and for the call that its microbatch comes from. The step takes
as long as the longest path through these calls, from what its first device does before to the sums of gradients of its
last, and then the longest updates; all of that is linear in the seconds of the stages. The program gives the cut with
the least longest path of those known, which is a bound.

To it items are divisible: a stage ends at a mean of positions, each of which counts with all its running sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from partitioner.planner.pipeline.calls import Calls, CallSeconds, Path
from partitioner.planner.pipeline.solve.corners import Corners
from partitioner.planner.pipeline.solve.problem import CutProblem
from partitioner.stages.actions import ActionKind

Floats = NDArray[np.float64]
Ranges = tuple[tuple[int, int], ...]
"""For each boundary between stages, the first and the last position at which it may be."""

NONE, ANY = -1, -2
"""In place of a stage that leaves nothing for later: none, or any."""
TOLERANCE = 1e-6
"""What the solver may be off by, and the rounding of sums."""

# Of all items, what a running sum is rounded to: sums that differ by rounding alone may make the solver turn in a
# circle, as a last item that leaves 1e-18 s for later does.
_DIGITS = 9
# Of the solver, for each stage. It needs far fewer, or would not end.
_MOST_ITERATIONS = 500


class Items:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A step, the running sums at the ends of stages, and what calls and devices take then."""

    step: float
    forward: Floats
    backward: Floats
    calls: CallSeconds
    once: Floats
    summing: Floats
    updating: float


@dataclass(slots=True)
class _Shares:
    """The shares that a boundary has at consecutive positions.

    Attributes:
        first: The first position.
        variables: Its share, and those of the positions behind it.
        may_be: Which of them may be more than 0.
    """

    first: int
    variables: list[Any]
    may_be: NDArray[np.bool_]

    def keep_to(self, positions: NDArray[np.bool_]) -> None:
        """Have shares at these positions alone, `(n + 1,)`."""
        may_be = positions[self.first : self.first + len(self.variables)]
        for index in np.flatnonzero(may_be != self.may_be).tolist():
            self.variables[index].SetBounds(0.0, float(may_be[index]))
        self.may_be = may_be


class CutProgram:
    """The linear program: where stages end, such that the longest of the known paths is shortest.

    A stage may leave for later what it can, or less: it leaves nothing where it recomputes. Seconds are given to the
    program as shares of those of all items, so that its tolerances mean the same for every model.

    What is linear in the variables is a row of their coefficients, behind that of 1.
    """

    def __init__(self, problem: CutProblem, items: Items, calls: Calls, ranges: Ranges, going_back: range) -> None:
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")  # it has no types
        most_iterations = _MOST_ITERATIONS * calls.num_stages
        self._solver.SetSolverSpecificParametersAsString(f"max_number_of_iterations: {most_iterations}")
        self._unit = max(float(items.forward[-1] + items.backward[-1]), 1e-12)
        self._ways = [_parameters(is_warm=True), _parameters(is_warm=False)]
        self._variables: list[Any] = []
        # At the most, of each stage: an end for each of six sums, what it leaves, a call for that and one for what its
        # device does once, and room.
        self._rows = np.eye(10 * calls.num_stages + 3)
        sums = np.array([*items]) / self._unit
        self._corners = Corners(sums)
        self._shares = [self._new_shares(*positions) for positions in ranges]
        self._forward, self._backward, *others = map(self._new_ends, np.round(sums, _DIGITS))
        forward, backward, weights, once, summing, updating = (
            np.diff(ends, axis=0) for ends in (self._forward, self._backward, *others)
        )
        self._call, self._num_leaving = problem.call_seconds / self._unit, problem.num_leaving
        leaving = going_back[1:] if items.weights[-1] else range(0)
        # The call for what a stage leaves, and the work that it may have, which is little if it leaves nothing. Where
        # that is open the call counts by how much more it has, of all that it may.
        self._third_call = {stage: self._new() for stage in leaving if problem.keeps[stage]}
        self._room = {stage: self._new() for stage in self._third_call}
        self._least_room = _longest_run(items.forward + items.backward, self._num_leaving) / self._unit
        more = problem.most_work / self._unit - self._least_room
        for stage, room in self._room.items():
            work = forward[stage] + backward[stage]
            self._at_least(self._rows[room], work)
            if more > self._least_room:
                over = work - self._least_room * self._rows[0]
                self._at_least(more * self._rows[self._third_call[stage]], self._call * over)
        third, later = np.zeros_like(forward), np.zeros_like(forward)
        for stage in leaving:
            if problem.keeps[stage]:
                third[stage] = self._rows[self._third_call[stage]]
                later[stage] = weights[stage] + third[stage]
            else:
                later[stage] = self._rows[self._new()]
                self._at_least(weights[stage], later[stage])
        call = self._call * self._rows[0]
        self._calls = {
            ActionKind.FORWARD: forward + call,
            ActionKind.BACKWARD: backward + call + third - later,
            ActionKind.WEIGHTS: later,
        }
        self._once, self._summing, updates = (calls.on_device @ of_stages for of_stages in (once, summing, updating))
        self._stages_of = [np.flatnonzero(of_device).tolist() for of_device in calls.on_device]
        self._once_sums = items.once
        self._once_call = {device: self._new() for device in range(len(self._stages_of)) if items.once[-1]}
        for device, variable in self._once_call.items():
            self._once[device] += self._rows[variable]
        step = self._new()
        self._step, self._updating = self._rows[step], self._rows[self._new()]
        for of_device in updates:
            self._at_least(self._updating, of_device + problem.update_call_seconds / self._unit * self._rows[0])
        self._solver.Minimize(self._variables[step - 1])

    def _new(self) -> int:
        """A variable, by its row."""
        self._variables.append(self._solver.NumVar(0.0, self._solver.infinity(), ""))
        return len(self._variables)

    def _new_shares(self, first: int, last: int) -> _Shares:
        """The shares that a boundary has at the positions of a range: one in all."""
        shares = [self._solver.NumVar(0.0, 1.0, "") for _ in range(first, last + 1)]
        whole = self._solver.Constraint(1.0, 1.0)
        for share in shares:
            whole.SetCoefficient(share, 1.0)
        return _Shares(first, shares, np.ones(len(shares), dtype=bool))

    def _new_ends(self, sums: Floats) -> Floats:
        """Running sums at the ends of stages: the means of those at the positions where boundaries have shares."""
        ends = np.zeros((len(self._shares) + 2, len(self._rows)))
        if not sums[-1]:
            return ends
        ends[-1] = sums[-1] * self._rows[0]
        for boundary, shares in enumerate(self._shares, start=1):
            end = self._new()
            ends[boundary] = self._rows[end]
            mean = self._solver.Constraint(0.0, 0.0)
            mean.SetCoefficient(self._variables[end - 1], -1.0)
            for share, value in zip(shares.variables, sums[shares.first :].tolist(), strict=False):
                mean.SetCoefficient(share, value)
        for start, end in pairwise(ends):
            self._at_least(end, start)
        return ends

    def _at_least(self, larger: Floats, smaller: Floats) -> None:
        one, *coefficients = (larger - smaller).tolist()
        constraint = self._solver.Constraint(-one, self._solver.infinity())
        for variable, coefficient in zip(self._variables, coefficients, strict=False):
            if coefficient:
                constraint.SetCoefficient(variable, coefficient)

    def add(self, path: Path) -> None:
        """Know one more path."""
        work = path.hop_seconds / self._unit * self._rows[0] + self._updating
        work += self._once[path.first_device] + self._summing[path.last_device]
        work += sum(counts @ self._calls[kind] for kind, counts in path.counts.items())
        self._at_least(self._step, work)

    @property
    def leaving(self) -> Sequence[int]:
        """The stages that leave gradients of weights for later, if they have any."""
        return [*self._third_call]

    def certainly_leaves(self, stage: int, ranges: Ranges) -> bool:
        """Whether such a stage has any, wherever it starts and ends in these ranges."""
        return _certainly_has(self._num_leaving, stage, ranges)

    def solve(self, ranges: Ranges, idle: int) -> Solved | None:
        """What the paths known so far leave to the cuts of a node; None where GLOP gives up."""
        for shares, positions in zip(self._shares, ranges, strict=True):
            shares.keep_to(self._corners.within(*positions))
        for stage, third in self._third_call.items():
            has_call = idle == NONE or self.certainly_leaves(stage, ranges)
            self._limit(third, self._call if has_call else 0.0, self._call)
            most = self._least_room if stage == idle else self._solver.infinity()
            self._limit(self._room[stage], 0.0, most * (1 + TOLERANCE))
        for device, once in self._once_call.items():
            has_call = any(_certainly_has(self._once_sums, stage, ranges) for stage in self._stages_of[device])
            self._limit(once, self._call if has_call else 0.0, self._call)
        if not any(self._solver.Solve(how) == pywraplp.Solver.OPTIMAL for how in self._ways):
            return None
        found = np.zeros(len(self._rows))
        found[: 1 + len(self._variables)] = [1.0, *(variable.solution_value() for variable in self._variables)]
        found *= self._unit
        return Solved(
            step=float(self._step @ found),
            forward=self._forward @ found,
            backward=self._backward @ found,
            calls={kind: seconds @ found for kind, seconds in self._calls.items()},
            once=self._once @ found,
            summing=self._summing @ found,
            updating=float(self._updating @ found),
        )

    def _limit(self, variable: int, least: float, most: float) -> None:
        self._variables[variable - 1].SetBounds(least, most)


def _parameters(*, is_warm: bool) -> Any:
    """How GLOP solves: from the last basis, which new paths leave dual feasible, or anew where it gives up so."""
    parameters: Any = pywraplp.MPSolverParameters()
    if is_warm:
        parameters.SetIntegerParam(parameters.LP_ALGORITHM, parameters.DUAL)
        parameters.SetIntegerParam(parameters.PRESOLVE, parameters.PRESOLVE_OFF)
    else:
        parameters.SetIntegerParam(parameters.INCREMENTALITY, parameters.INCREMENTALITY_OFF)
    return parameters


def _certainly_has(sums: Sequence[float] | Floats, stage: int, ranges: Ranges) -> bool:
    """Whether a stage has some of what running sums count, wherever it starts and ends in these ranges."""
    limits = [(0, 0), *ranges, (len(sums) - 1,) * 2]
    (_, start), (end, _) = limits[stage : stage + 2]
    return bool(sums[end] > sums[start])


def _longest_run(sums: Floats, counts: Sequence[int]) -> float:
    """The most that running sums grow while counts stay as they are."""
    grown: dict[int, float] = {}
    firsts: dict[int, float] = {}
    for value, count in zip(sums.tolist(), counts, strict=True):
        grown[count] = value - firsts.setdefault(count, value)
    return max(grown.values())
