"""Ask the solver's process: whatever happens there, the caller gets a solution or the reason why there is none."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, replace

import msgspec

from partitioner.ir.json import from_json, to_json
from partitioner.ir.problem import PlacementProblem, Solution
from partitioner.planner.placement.solve.bounds import bounds
from partitioner.planner.placement.solve.evaluate import violations
from partitioner.planner.placement.solve.start import best_start, proved_at_once
from partitioner.solver_process import child_command, child_environment, ending

GRACE_SECONDS = 10.0
"""How long after the time limit the child may still start, build its model and answer before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveResult:
    """A solution; `note` says why it is not the solver's own, and is empty when it is."""

    solution: Solution
    note: str = ""


def solve(problem: PlacementProblem, grace_seconds: float = GRACE_SECONDS) -> SolveResult:
    """Solve a problem in a fresh process, which is killed `grace_seconds` after the problem's time limit.

    When the process crashes, is killed or answers nonsense, the best warm start is the solution, with the
    bound that needs no search; without a feasible one the status is `time-limit`.

    Raises:
        KeyboardInterrupt: Ctrl-C; the process has been killed.
    """
    began = time.monotonic()
    if (proved := proved_at_once(problem)) is not None:
        return SolveResult(solution=replace(proved, seconds=time.monotonic() - began))
    try:
        child = _run_child(to_json(problem).encode(), problem.time_limit_seconds + grace_seconds)
    except subprocess.TimeoutExpired:
        limit = problem.time_limit_seconds
        return _without_solver(problem, began, f"the solver did not stop at its limit of {limit:g} s: killed")
    except OSError as error:
        return _without_solver(problem, began, f"the solver did not start: {error}")
    if child.returncode != 0:
        return _without_solver(problem, began, f"the solver {ending(child.returncode, child.stderr)}")
    try:
        solution = from_json(child.stdout, Solution)
    except msgspec.DecodeError as error:
        return _without_solver(problem, began, f"the solver's answer is unreadable: {error}")
    if solution.assignment is not None and (wrong := next(iter(violations(problem, solution.assignment)), "")):
        return _without_solver(problem, began, f"the solver's answer is wrong: {wrong}")
    return SolveResult(solution=replace(solution, seconds=time.monotonic() - began))


def _run_child(request: bytes, timeout_seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run the solver to its end; on any exception, kill it and wait until it has ended."""
    command = child_command("partitioner.planner.placement.solve")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment()) as child:
        try:
            stdout, stderr = child.communicate(request, timeout_seconds)
        except BaseException:
            child.kill()
            child.wait()
            raise
        return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)


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
