"""Two solves inside one budget: the shortest makespan first, then the emptiest fullest device near it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ortools.sat.python import cp_model

from partitioner.ir.problem import PlacementProblem, Solution
from partitioner.planner.placement.solve.bounds import Bounds, bounds
from partitioner.planner.placement.solve.evaluate import ScheduledAssignment, schedule_assignment
from partitioner.planner.placement.solve.model import PlacementModel
from partitioner.planner.placement.solve.start import best_start

DETERMINISTIC_PER_SECOND = 0.15
"""Work granted per second of the time limit, in CP-SAT's deterministic units.

A quiet machine does 0.3 to 0.5 in a second (measured on two cores), so it is the work that stops a run, at
the same point everywhere; the clock does so only on a machine that is more than twice as slow or busy.
"""

WORKERS = 4
SUBSOLVERS = ("max_lp", "quick_restart")
"""One subsolver for the bound, one for solutions, next to CP-SAT's own neighbourhood searches.

After equal work on 80 items with scarce memory it left smaller gaps than CP-SAT's own choice of eight: chains
on 2 devices 0 against 1.4 %, on 4 devices 0.2 against 0.4 %, two towers on 2 devices 1.0 against 1.2 %
(OR-Tools 9.15).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The answer of one solve: CP-SAT's status, the schedule (if any), the proved bound on the objective."""

    status: cp_model.CpSolverStatus
    schedule: ScheduledAssignment | None
    bound: int


class Budget:
    """The time left, in wall seconds and in the deterministic units in which CP-SAT counts work."""

    def __init__(self, limit_seconds: float) -> None:
        self._end = time.monotonic() + limit_seconds
        self.deterministic = limit_seconds * DETERMINISTIC_PER_SECOND

    @property
    def seconds(self) -> float:
        """Wall seconds left."""
        return max(0.0, self._end - time.monotonic())


def solve_in_process(problem: PlacementProblem) -> Solution:
    """Solve a problem with CP-SAT in this process, which must not have imported TensorFlow.

    Raises:
        RuntimeError: CP-SAT rejects the model (its numbers overflow 64 bits), or the model disagrees with the
            schedule of its own solution.
    """
    began = time.monotonic()
    limits = bounds(problem)
    if limits is None:
        return Solution(status="infeasible", seconds=time.monotonic() - began)
    budget = Budget(problem.time_limit_seconds)
    start = best_start(problem)
    model = PlacementModel(problem, limits, start.makespan_ns if start else limits.upper_ns)
    model.minimise_makespan()
    share = 0.75 if problem.balance_permille else 1.0
    answer = _run(problem, model, start, budget, share)
    shortest = answer.schedule or start
    if answer.status == cp_model.INFEASIBLE:
        return Solution(status="infeasible", seconds=time.monotonic() - began)
    if shortest is None:
        return Solution(status="time-limit", lower_bound_ns=limits.lower_ns, seconds=time.monotonic() - began)
    chosen = shortest
    if problem.balance_permille:
        chosen = _balanced(problem, limits, shortest, budget) or shortest
    return Solution(
        status="optimal" if answer.status == cp_model.OPTIMAL else "feasible",
        assignment=chosen.assignment,
        makespan_ns=chosen.makespan_ns,
        # A first solve that was stopped early may be beaten by the second in passing.
        shortest_ns=min(shortest.makespan_ns, chosen.makespan_ns),
        lower_bound_ns=max(limits.lower_ns, answer.bound),
        seconds=time.monotonic() - began,
    )


def _balanced(
    problem: PlacementProblem, limits: Bounds, shortest: ScheduledAssignment, budget: Budget
) -> ScheduledAssignment | None:
    allowance_ns = shortest.makespan_ns * problem.balance_permille // 1000
    model = PlacementModel(problem, limits, shortest.makespan_ns + allowance_ns)
    model.minimise_fullest_device()
    return _run(problem, model, shortest, budget, 1.0).schedule


def _run(
    problem: PlacementProblem,
    model: PlacementModel,
    start: ScheduledAssignment | None,
    budget: Budget,
    share: float,
) -> _Answer:
    if start is not None:
        model.hint(start)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = problem.seed % 2**31
    # Interleaved, the workers take turns by work done, not by time: the same result on every run.
    solver.parameters.interleave_search = True
    solver.parameters.num_workers = WORKERS
    solver.parameters.subsolvers.extend(SUBSOLVERS)
    solver.parameters.max_deterministic_time = max(0.0, budget.deterministic * share)
    solver.parameters.max_time_in_seconds = budget.seconds * share
    status = solver.solve(model.cp)
    budget.deterministic -= solver.response_proto.deterministic_time
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT rejects the model: {model.cp.validate()}")
    schedule = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        assignment = [next(d for d, on in devices.items() if solver.value(on)) for devices in model.on]
        schedule = schedule_assignment(problem, assignment, [solver.value(begin) for begin in model.starts])
        if schedule.makespan_ns > solver.value(model.makespan):
            raise RuntimeError(f"CP-SAT ends after {solver.value(model.makespan)} ns, its schedule {schedule}")
    return _Answer(status=status, schedule=schedule, bound=round(solver.best_objective_bound))
