"""The solver's client: what the caller gets when the process answers, dies, lies or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import partitioner
from partitioner.ir.problem import (
    Item,
    PlacementProblem,
    ProblemDevice,
    ProblemLink,
    Solution,
    Task,
    Transfer,
)
from partitioner.planner.placement.solve.client import solve
from partitioner.planner.placement.solve.start import proved_at_once

ROOT = Path(partitioner.__file__).parents[1]


def chain(num_items: int, capacity_bytes: int, time_limit_seconds: float = 20.0, **options) -> PlacementProblem:
    """Items of 10 ns and 10 bytes in a row, over two devices; a cut costs 3 ns."""
    wire = ProblemLink(latency_ns=3, picoseconds_per_byte=0)
    return PlacementProblem(
        devices=tuple(ProblemDevice(name=f"d{i}", capacity_bytes=capacity_bytes) for i in range(2)),
        links=((wire, wire), (wire, wire)),
        items=tuple(Item(name=f"i{i}", memory_bytes=10) for i in range(num_items)),
        tasks=tuple(Task(item=i, duration_ns=(10, 10)) for i in range(num_items)),
        transfers=tuple(Transfer(source=i, targets=(i + 1,), size_bytes=1) for i in range(num_items - 1)),
        time_limit_seconds=time_limit_seconds,
        **options,
    )


def test_the_solver_answers() -> None:
    result = solve(chain(4, 20))
    assert result.note == ""
    assert (result.solution.status, result.solution.makespan_ns) == ("optimal", 43)
    assert result.solution.assignment == (0, 0, 1, 1)


def test_an_obvious_optimum_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    result = solve(chain(4, 40))
    assert result.note == ""
    assert (result.solution.status, result.solution.makespan_ns, result.solution.lower_bound_ns) == (
        "optimal",
        40,
        40,
    )
    assert proved_at_once(chain(4, 20)) is None


def test_infeasible_is_proved_by_the_solver() -> None:
    result = solve(chain(5, 20))
    assert (result.solution.status, result.note) == ("infeasible", "")


FAILURES = {
    "import os; os.kill(os.getpid(), 9)": "signal 9",
    "import os; os.abort()": "signal 6",
    "raise SystemExit('no licence')": "exit code 1): no licence",
    "print('hello')": "unreadable",
    "": "unreadable",
    """print('{"status": "optimal", "assignment": [0, 0, 0, 0]}')""": "would hold 40 bytes of 20",
    """print('{"status": "optimal", "assignment": [0]}')""": "1 devices for 4 items",
    "import time; time.sleep(60)": "did not stop at its limit of 0.2 s",
}


@pytest.mark.parametrize("source", FAILURES)
def test_the_best_warm_start_replaces_an_answer(child_runs, source: str) -> None:
    child_runs(source)
    hints = ((0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 1))
    result = solve(chain(4, 20, 0.2, hints=hints), grace_seconds=0.3 if "sleep" in source else 20)
    assert FAILURES[source] in result.note
    solution = result.solution
    assert (solution.status, solution.assignment, solution.makespan_ns) == ("feasible", (0, 0, 1, 1), 43)
    assert (solution.shortest_ns, solution.lower_bound_ns) == (43, 40)


def test_without_a_warm_start_the_time_limit_is_reported(child_runs) -> None:
    child_runs("raise SystemExit(3)")
    result = solve(chain(5, 20, hints=((0, 0, 0, 0, 0),)))
    assert result.solution == Solution(status="time-limit", lower_bound_ns=50, seconds=result.solution.seconds)
    assert "exit code 3" in result.note


def test_a_process_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    result = solve(chain(4, 20))
    assert result.solution.status == "feasible"
    assert "did not start" in result.note


def test_the_real_solver_is_killed_past_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))  # so that none that waits is taken
    # Starting Python and OR-Tools alone takes longer than this.
    result = solve(chain(4, 20, 0.01), grace_seconds=0.02)
    assert "killed" in result.note
    assert (result.solution.status, result.solution.makespan_ns) == ("feasible", 43)


def test_an_interrupt_kills_the_child_and_reaches_the_caller(child_runs, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child_runs(f"""
        import os, pathlib, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        time.sleep(60)
    """)

    def interrupt() -> None:
        while not (pid_file.exists() and pid_file.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        solve(chain(4, 20))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def run_python(source: str, cwd: Path) -> str:
    """Run a user's program that knows our packages only through its own sys.path."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(source)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.strip()


ASK = """
    from partitioner.ir.problem import *
    from partitioner.planner.placement.solve.client import solve
    wire = ProblemLink(latency_ns=3, picoseconds_per_byte=0)
    result = solve(PlacementProblem(
        devices=(ProblemDevice(name="a", capacity_bytes=1), ProblemDevice(name="b", capacity_bytes=1)),
        links=((wire, wire), (wire, wire)),
        items=(Item(name="x", memory_bytes=1), Item(name="y", memory_bytes=1)),
        tasks=(Task(item=0, duration_ns=(5, 5)), Task(item=1, duration_ns=(5, 5))),
        transfers=(Transfer(source=0, targets=(1,), size_bytes=1),),
    ))
    print(result.solution.status, result.solution.makespan_ns, repr(result.note))
"""


def test_a_user_who_imported_tensorflow_first_can_solve(tmp_path: Path) -> None:
    assert run_python("import tensorflow" + ASK.replace("\n    ", "\n"), tmp_path) == "optimal 13 ''"


def test_the_client_imports_neither_the_solver_nor_tensorflow(tmp_path: Path) -> None:
    loaded = ASK + "    print(*sorted({'ortools', 'tensorflow', 'keras'} & set(sys.modules)))\n"
    assert run_python(loaded, tmp_path) == "optimal 13 ''"


def test_nothing_in_the_working_directory_is_mistaken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "ortools.py").write_text("raise SystemExit('the wrong ortools')")
    program = "sys.path.remove('')\n" + textwrap.dedent(ASK)
    assert run_python(program, tmp_path) == "optimal 13 ''"
