"""The solvers' process: what its answers are, when it is used again, and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

from partitioner.solver_process.client import SolverProcessError, answers, start_early

ROOT = Path(__file__).parents[2]


def told(request: str, seconds: float = 60.0) -> list[str]:
    """The lines of an answer of `obedient.py`."""
    with closing(answers("obedient", request, seconds)) as lines:
        return [line.decode().rstrip("\n") for line in lines]


def pid() -> int:
    return int(told("pid")[0])


def end_the_waiting_one() -> None:
    with closing(answers("obedient", "wait", 60)) as lines:
        next(lines)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int) -> bool:
    """Whether it ends within some seconds."""
    until = time.monotonic() + 20
    while is_running(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_running(process)


def test_answers_come_line_by_line() -> None:
    assert told("count:3") == ["0", "1", "2"]
    assert told("count:0") == []


def test_requests_may_be_large() -> None:
    assert told("x" * 5_000_000) == ["5000000"]


def test_only_answers_are_read() -> None:
    assert told("banner") == ["answered"]


def test_a_process_that_has_answered_answers_again() -> None:
    assert pid() == pid()


def test_a_failure_is_told_and_the_next_request_has_another_process() -> None:
    before = pid()
    with pytest.raises(SolverProcessError, match=r"exit code 1.*no licence"):
        told("fail:no licence")
    assert pid() != before
    assert not is_running(before)


def test_a_process_that_takes_too_long_is_killed() -> None:
    before = pid()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        told("wait", 0.5)
    assert time.monotonic() - began < 10
    assert not is_running(before)


def test_a_large_request_that_nobody_reads_ends_in_time(child_runs) -> None:
    child_runs("import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        told("x" * 5_000_000, 0.5)
    assert time.monotonic() - began < 10


def test_an_answer_that_is_not_waited_for_ends_the_process() -> None:
    before = pid()
    with closing(answers("obedient", "wait", 60)) as lines:
        assert next(lines) == b"begun\n"
    assert not is_running(before)


def test_one_that_was_killed_while_it_waited_is_replaced() -> None:
    before = pid()
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert pid() != before


def test_two_requests_at_once_have_two_processes() -> None:
    with closing(answers("obedient", "pid", 60)) as first, closing(answers("obedient", "pid", 60)) as second:
        assert next(first) != next(second)


def test_one_that_was_started_early_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    end_the_waiting_one()
    start_early()
    monkeypatch.setattr("subprocess.Popen", None)  # no other may be started
    assert pid()


def test_it_waits_some_time_and_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitioner.solver_process.client._IDLE_SECONDS", 0.1)
    assert ends(pid())


def test_other_search_paths_are_those_of_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = pid()
    (tmp_path / "obedient.py").write_text("def answer(request, send): send('another')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert told("pid") == ["another"]
    monkeypatch.undo()
    assert pid() == before


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has `asked`, which gives the lines of an answer."""
    head = """
        import os, signal
        from partitioner.solver_process.client import answers
        def asked(request):
            return (line.decode().strip() for line in answers("obedient", request, 60))
    """
    path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    command = (sys.executable, "-c", dedent(head) + dedent(source))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("doing", ["pid", "wait"])
def test_it_ends_with_the_one_that_asks_whatever_ended_it(doing: str) -> None:
    done = run(f"""
        print(*asked("pid"), flush=True)
        next(asked({doing!r}))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.returncode == -signal.SIGKILL
    assert ends(int(done.stdout))


def test_a_fork_has_a_process_of_its_own() -> None:
    done = run("""
        before, = asked("pid")
        if not (fork := os.fork()):
            print(*asked("pid"), flush=True)
            os._exit(0)
        os.waitpid(fork, 0)
        print(before, *asked("pid"))
    """)
    forked, before, after = done.stdout.split()
    assert before == after != forked
