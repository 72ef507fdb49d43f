"""The solver's client: what the caller gets when the process answers, dies, lies, hangs or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from instances import gpu, graph

from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.solver.client import solve
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import to_json

FOUR = graph([10.0] * 4, [(0, 1), (1, 2), (2, 3)], [1.0] * 4)


def problem(time_limit_seconds: float = 120.0, capacity_bytes: int | None = None) -> MaxLoadProblem:
    """A chain of four on two accelerators: 21 for each is best."""
    devices = (gpu(0, capacity_bytes), gpu(1, capacity_bytes))
    return build_problem(FOUR, devices, time_limit_seconds=time_limit_seconds).problem


BEST = round(21 / build_problem(FOUR, (gpu(0), gpu(1))).unit)


def test_the_solver_answers_and_tells_on_the_way() -> None:
    told = []
    result = solve(problem(), lambda answer, seconds: told.append((answer, seconds)))
    assert (result.answer.status, result.answer.max_load, result.answer.lower_bound, result.note) == (
        "optimal",
        BEST,
        BEST,
        "",
    )
    assert told[-1][0] == result.answer
    assert [seconds for _, seconds in told] == sorted(seconds for _, seconds in told)


SPLIT_ONCE = MaxLoadAnswer(status="feasible", lower_bound=5, assignment=(0, 1, 1, 1), max_load=31 * BEST // 21)
ONE_ANSWER = f"print({to_json(SPLIT_ONCE)!r}, flush=True)"
FAILURES = {
    "import os; os.kill(os.getpid(), 9)": "signal 9",
    "raise SystemExit('no licence')": "exit code 1): no licence",
    "print('hello')": "unreadable",
    """print('{"status": "feasible", "lower_bound": 0, "assignment": [0]}')""": "1 devices for 4 items",
    """print('{"status": "feasible", "lower_bound": 0, "assignment": [0, 0, 0, 0], "max_load": 1}')""": "not 1",
}


@pytest.mark.parametrize("source", FAILURES)
def test_a_heuristic_replaces_an_answer(child_runs, source: str) -> None:
    child_runs(source)
    result = solve(problem())
    assert FAILURES[source] in result.note
    # The row of four is cut in two by a DP, and its work alone takes 20 on each device.
    assert (result.answer.status, result.answer.max_load) == ("feasible", BEST)
    assert result.answer.lower_bound == round(20 * BEST / 21)


def test_what_was_told_before_the_end_is_kept(child_runs) -> None:
    child_runs(f"import os; {ONE_ANSWER}; os.kill(os.getpid(), 9)")
    result = solve(problem())
    assert "signal 9" in result.note
    assert (result.answer.assignment, result.answer.max_load) == ((0, 1, 1, 1), 31 * BEST // 21)


def test_the_time_limit_keeps_the_best_so_far(child_runs) -> None:
    child_runs(f"import time; {ONE_ANSWER}; time.sleep(60)")
    began = time.monotonic()
    result = solve(problem(time_limit_seconds=2))
    assert time.monotonic() - began < 3
    assert (result.answer.assignment, result.answer.status, result.note) == ((0, 1, 1, 1), "feasible", "")


def test_without_any_assignment_the_time_limit_is_reported(child_runs) -> None:
    child_runs("import time; time.sleep(60)")
    five = graph([1.0] * 5, [], memory_bytes=[10.0] * 5)
    result = solve(build_problem(five, (gpu(0, 20), gpu(1, 20)), time_limit_seconds=0.3).problem)
    assert (result.answer.status, result.answer.assignment) == ("time-limit", None)
    assert "no placement after 0.3 s" in result.note


def test_a_process_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    result = solve(problem())
    assert (result.answer.status, result.answer.max_load) == ("feasible", BEST)
    assert "did not start" in result.note


INTERRUPTED = """
import os, signal, sys, threading, time
from partitioner.ir.json import from_json
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.client import solve

problem = from_json(sys.stdin.read(), MaxLoadProblem)
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt(answer, seconds):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
sys.executable = sys.argv[1]
result = solve(problem, interrupt)
print(result.answer.assignment, result.note)
"""


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    child = tmp_path / "child"
    child.write_text(f"#!{sys.executable}\nimport time\n{ONE_ANSWER}\ntime.sleep(60)\n")
    child.chmod(0o755)
    done = subprocess.run(
        (sys.executable, "-c", INTERRUPTED, str(child)),
        input=to_json(problem(200)),
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stdout == "(0, 1, 1, 1) interrupted: this is the best so far\n"


def test_the_real_solver_may_be_killed_at_any_time() -> None:
    """A graph that takes seconds to solve; the process is killed as soon as it has told of something."""
    size = 60
    costs = [1.0 + (7 * index % 13) / 3 for index in range(size)]
    edges = [(index, index + step) for index in range(size) for step in (1, 4, 9) if index + step < size]
    hard = graph(costs, edges, [0.3 + (5 * index % 7) / 4 for index in range(size)])
    asked = build_problem(hard, tuple(gpu(index) for index in range(5)), time_limit_seconds=300).problem
    killed = threading.Event()
    others = solver_processes()  # of other tests

    def kill(_answer, _seconds) -> None:
        if not killed.is_set():
            killed.set()
            for pid in solver_processes() - others:
                os.kill(pid, signal.SIGKILL)

    result = solve(asked, kill)
    assert killed.is_set()
    assert result.answer.assignment is not None
    assert "signal 9" in result.note


def solver_processes() -> set[int]:
    """Those that this process has started."""
    told = subprocess.run(
        ("ps", "-A", "-ww", "-o", "pid=,ppid=,args="), capture_output=True, text=True, check=True
    ).stdout
    processes = (line.split(maxsplit=2) for line in told.splitlines())
    return {
        int(pid)
        for pid, parent, arguments in processes
        if int(parent) == os.getpid() and "partitioner.solver_process" in arguments
    }
