"""Ask the solver's process: whatever happens there, the caller gets a solution or the reason why there is none."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from partitioner.ir.json import from_json, to_json
from partitioner.ir.problem import PlacementProblem, Solution
from partitioner.planner.placement.solve.bounds import bounds
from partitioner.planner.placement.solve.evaluate import violations
from partitioner.planner.placement.solve.start import best_start, proved_at_once
from partitioner.solver_process.client import SolverProcessError, answers

_SOLVER = "partitioner.planner.placement.solve.answer"
GRACE_SECONDS = 10.0
"""How long after the time limit the child may still start, build its model and answer before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveResult:
    """A solution; `note` says why it is not the solver's own, and is empty when it is."""

    solution: Solution
    note: str = ""


def solve(problem: PlacementProblem, grace_seconds: float = GRACE_SECONDS) -> SolveResult:
    """Solve a problem in the solver's process, which is killed `grace_seconds` after the problem's time limit.

    When the process crashes, is killed or answers nonsense, the best warm start is the solution, with the
    bound that needs no search; without a feasible one the status is `time-limit`.

    Raises:
        KeyboardInterrupt: Ctrl-C; the process has been killed.
    """
    began = time.monotonic()
    if (proved := proved_at_once(problem)) is not None:
        return SolveResult(solution=replace(proved, seconds=time.monotonic() - began))
    limit = problem.time_limit_seconds
    try:
        with closing(answers(_SOLVER, to_json(problem), limit + grace_seconds)) as lines:
            solution = from_json(b"".join(lines), Solution)
    except TimeoutError:
        return _without_solver(problem, began, f"the solver did not stop at its limit of {limit:g} s: killed")
    except SolverProcessError as error:
        return _without_solver(problem, began, str(error))
    except msgspec.DecodeError as error:
        return _without_solver(problem, began, f"the solver's answer is unreadable: {error}")
    if solution.assignment is not None and (wrong := next(iter(violations(problem, solution.assignment)), "")):
        return _without_solver(problem, began, f"the solver's answer is wrong: {wrong}")
    return SolveResult(solution=replace(solution, seconds=time.monotonic() - began))


def _without_solver(problem: PlacementProblem, began: float, note: str) -> SolveResult:
    limits, start = bounds(problem), best_start(problem)
    lower_ns = limits.lower_ns if limits else 0
    if start is None:
        solution = Solution(status="time-limit", lower_bound_ns=lower_ns)
    else:
        solution = Solution(
            status="feasible",
            assignment=start.assignment,
            makespan_ns=start.makespan_ns,
            shortest_ns=start.makespan_ns,
            lower_bound_ns=lower_ns,
        )
    return SolveResult(solution=replace(solution, seconds=time.monotonic() - began), note=note)
