"""Call the solver's process. It reports every improvement, so it may be stopped, or die, at any time."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.start import first_fit
from partitioner.ir.json import from_json, to_json
from partitioner.solver_process import child_command, child_environment, ending

END = "end"
"""The status of the line that the process writes after its last answer to a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadResult:
    """The answer, its wall seconds, and a note why the search ended early; empty if it did not."""

    answer: MaxLoadAnswer
    seconds: float
    note: str = ""


def solve(
    problem: MaxLoadProblem, on_progress: Callable[[MaxLoadAnswer, float], None] = lambda _answer, _seconds: None
) -> MaxLoadResult:
    """Solve a problem in a fresh process, which is killed at the problem's time limit.

    Whatever happens to the process, the result is the best answer that it reported, also after Ctrl-C. If it reported
    none, the result is a first fit; the status is `time-limit` if that fails too.

    Args:
        problem: The problem to solve.
        on_progress: Called with each better answer and the seconds so far.
    """
    began = time.monotonic()
    incumbent = MaxLoadAnswer(status="time-limit", lower_bound=quick_bound(problem))
    note = ""
    try:
        # Its own process group: this process handles Ctrl-C.
        child = subprocess.Popen(
            child_command("partitioner.cost_graphs.solver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            process_group=0,
        )
    except OSError as error:
        return _result(problem, incumbent, began, f"the solver did not start: {error}")
    lines: queue.Queue[bytes] = queue.Queue()
    stderr: list[bytes] = []
    threads = [
        threading.Thread(target=_write, args=(child, to_json(problem).encode() + b"\n"), daemon=True),
        threading.Thread(target=_read_lines, args=(child, lines), daemon=True),
        threading.Thread(target=lambda: stderr.append(child.stderr.read() if child.stderr else b""), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            left = problem.time_limit_seconds - (time.monotonic() - began)
            line = lines.get(timeout=max(left, 0))
            if not line:
                threads[2].join(1)
                note = f"the solver {ending(child.wait(), b''.join(stderr))}"
                break
            answer = from_json(line, MaxLoadAnswer)
            if answer.status == END:
                break
            _refuse_wrong(problem, answer)
            incumbent = replace(answer, lower_bound=max(answer.lower_bound, incumbent.lower_bound))
            on_progress(incumbent, time.monotonic() - began)
            if incumbent.status in ("optimal", "infeasible"):
                break
    except queue.Empty:
        note = "" if incumbent.assignment is not None else f"nothing was found in {problem.time_limit_seconds:g} s"
    except KeyboardInterrupt:
        note = "interrupted: this is the best so far"
    except msgspec.DecodeError as error:
        note = f"the solver's answer is unreadable: {error}"
    except ValueError as error:
        note = f"the solver's answer is wrong: {error}"
    finally:
        child.kill()
        child.wait()
    return _result(problem, incumbent, began, note)


def _write(child: subprocess.Popen[bytes], request: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(request)
        child.stdin.close()
    except OSError:
        return  # it has ended; see its exit code


def _read_lines(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(b"")


def _refuse_wrong(problem: MaxLoadProblem, answer: MaxLoadAnswer) -> None:
    if answer.assignment is None:
        return
    for violation in violations(problem, answer.assignment):
        raise ValueError(violation)
    if max(loads(problem, answer.assignment)) != answer.max_load:
        raise ValueError(f"its largest load is {max(loads(problem, answer.assignment))}, not {answer.max_load}")


def _result(problem: MaxLoadProblem, best: MaxLoadAnswer, began: float, note: str) -> MaxLoadResult:
    if best.assignment is None and best.status != "infeasible":
        assignment = first_fit(problem)
        if assignment is not None:
            load = max(loads(problem, assignment))
            status = "optimal" if load <= best.lower_bound else "feasible"
            best = replace(best, status=status, assignment=assignment, max_load=load, method="first fit")
    return MaxLoadResult(answer=best, seconds=time.monotonic() - began, note=note)
