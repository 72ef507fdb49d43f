"""Call the solver's process. It reports every improvement, so it may be stopped, or die, at any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.start import first_fit
from partitioner.ir.json import from_json, to_json
from partitioner.solver_process.client import SolverProcessError, answers

_SOLVER = "partitioner.cost_graphs.solver.answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadResult:
    """The answer, its wall seconds, and a note why the search ended early; empty if it did not."""

    answer: MaxLoadAnswer
    seconds: float
    note: str = ""


def solve(
    problem: MaxLoadProblem, on_progress: Callable[[MaxLoadAnswer, float], None] = lambda _answer, _seconds: None
) -> MaxLoadResult:
    """Solve a problem in the solver's process, which is killed at the problem's time limit.

    Whatever happens to the process, the result is the best answer that it reported, also after Ctrl-C. If it reported
    none, the result is a first fit; the status is `time-limit` if that fails too.

    Args:
        problem: The problem to solve.
        on_progress: Called with each better answer and the seconds so far.
    """
    began = time.monotonic()
    incumbent = MaxLoadAnswer(status="time-limit", lower_bound=quick_bound(problem))
    note = ""
    limit = problem.time_limit_seconds
    try:
        with closing(answers(_SOLVER, to_json(problem), limit)) as lines:
            for line in lines:
                answer = from_json(line, MaxLoadAnswer)
                _refuse_wrong(problem, answer)
                incumbent = replace(answer, lower_bound=max(answer.lower_bound, incumbent.lower_bound))
                on_progress(incumbent, time.monotonic() - began)
                if incumbent.status in ("optimal", "infeasible"):
                    break
    except TimeoutError:
        note = "" if incumbent.assignment is not None else f"no placement after {limit:g} s"
    except SolverProcessError as error:
        note = str(error)
    except KeyboardInterrupt:
        note = "interrupted: this is the best so far"
    except msgspec.DecodeError as error:
        note = f"the solver's answer is unreadable: {error}"
    except ValueError as error:
        note = f"the solver's answer is wrong: {error}"
    return _result(problem, incumbent, began, note)


def _refuse_wrong(problem: MaxLoadProblem, answer: MaxLoadAnswer) -> None:
    if answer.assignment is None:
        return
    for violation in violations(problem, answer.assignment):
        raise ValueError(violation)
    if max(loads(problem, answer.assignment)) != answer.max_load:
        raise ValueError(f"its largest load is {max(loads(problem, answer.assignment))}, not {answer.max_load}")


def _result(problem: MaxLoadProblem, incumbent: MaxLoadAnswer, began: float, note: str) -> MaxLoadResult:
    if incumbent.assignment is None and incumbent.status != "infeasible":
        assignment = first_fit(problem)
        if assignment is not None:
            load = max(loads(problem, assignment))
            status = "optimal" if load <= incumbent.lower_bound else "feasible"
            incumbent = replace(incumbent, status=status, assignment=assignment, max_load=load, method="first fit")
    return MaxLoadResult(answer=incumbent, seconds=time.monotonic() - began, note=note)
