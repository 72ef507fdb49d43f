"""The end that asks. A process that has answered waits for the next request, as starting one takes about a second."""

from __future__ import annotations

import atexit
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from partitioner.deadline import Deadline

END = b"\n"
"""The line after the last answer to a request."""

_IDLE_SECONDS = 30.0
"""How long a process waits for another request: it holds some 150 MiB."""


class SolverProcessError(Exception):
    """The process did not start, or ended with an exit code or by a signal; the text says how."""


def start_early() -> None:
    """Have a process import its libraries while the caller still prepares the first request."""
    with suppress(SolverProcessError):  # the request will say so
        _waiting.add(_waiting.take() or _SolverProcess(_Program.now()))


def answers(solver: str, request: str, seconds: float) -> Generator[bytes, None, None]:
    """Have a solver answer a request, and give the lines that it writes as they come.

    The process is killed when the iterator is closed before its end: wrap it in `contextlib.closing`.

    Args:
        solver: Name of a module with a function `answer(request, send)`, which may send any number of lines.
        request: A line of JSON.
        seconds: How long the answer may take, the start of the process included.

    Raises:
        SolverProcessError: It did not start, or failed.
        TimeoutError: It has not ended in time.
    """
    deadline = Deadline.after(seconds)
    process = _waiting.take() or _SolverProcess(_Program.now())
    has_answered = False
    try:
        lines = process.ask(f"{solver} {request}\n".encode())
        while (line := lines.get(timeout=deadline.seconds_left)) not in (END, b""):
            yield line
        has_answered = line == END
        if not has_answered:
            process.raise_failure(deadline)
    except (queue.Empty, subprocess.TimeoutExpired):
        raise TimeoutError from None
    finally:
        if has_answered:
            _waiting.add(process)
        else:
            process.kill()


@dataclass(frozen=True, slots=True)
class _Program:
    """Python and where it finds modules: a process is used again only while both are what they were."""

    executable: str
    search_path: tuple[str, ...]

    @classmethod
    def now(cls) -> _Program:
        """Those of the caller."""
        return cls(sys.executable, tuple(str(Path(entry).absolute()) for entry in sys.path))


class _SolverProcess:
    """A running process."""

    def __init__(self, program: _Program) -> None:
        self.program = program
        self._stderr = TemporaryFile()  # noqa: SIM115 - it is open as long as the process
        self._talk = threading.Thread()
        # -P: the directory the user works in must not shadow a module of ours.
        command = [program.executable, "-P", "-m", "partitioner.solver_process", str(os.getpid())]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(program.search_path)},
                process_group=0,  # Ctrl-C is ours
            )
        except OSError as error:
            self._stderr.close()
            raise SolverProcessError(f"the solver did not start: {error}") from error

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def ask(self, request: bytes) -> queue.Queue[bytes]:
        """Where the lines of the answer come, up to `END`, or nothing if the process ends before."""
        lines: queue.Queue[bytes] = queue.Queue()
        self._talk = threading.Thread(target=_talk, args=(self._child, request, lines), daemon=True)
        self._talk.start()
        return lines

    def raise_failure(self, deadline: Deadline) -> None:
        """Say how it ended, if it failed.

        Raises:
            SolverProcessError: It failed.
            subprocess.TimeoutExpired: It still runs at the deadline.
        """
        if code := self._child.wait(deadline.seconds_left):
            self._stderr.seek(0)
            raise SolverProcessError(f"the solver {_ending(code, self._stderr.read())}")

    def kill(self) -> None:
        """End it, whatever it does."""
        self._child.kill()
        self._child.wait()
        if self._talk.ident:
            self._talk.join()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):  # of a request that it has not read
            self._child.stdin.close()
        self._child.stdout.close()
        self._stderr.close()


class _WaitingProcesses:
    """Processes that wait for a request, each with the timer that ends it."""

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Begin with none: those of the process that this one was forked from are not ours."""
        self._timers: dict[_SolverProcess, threading.Timer] = {}
        self._lock = threading.Lock()

    def add(self, process: _SolverProcess) -> None:
        """Keep a process for a while."""
        timer = threading.Timer(_IDLE_SECONDS, self._retire, (process,))
        timer.daemon = True
        with self._lock:
            self._timers[process] = timer
        timer.start()

    def take(self) -> _SolverProcess | None:
        """A process that would be started alike now, if one waits and has not been killed by others."""
        program = _Program.now()
        with self._lock:
            alike = [process for process in self._timers if process.program == program]
            for process in alike:
                self._timers.pop(process).cancel()
                if process.is_running:
                    return process
                process.kill()
        return None

    def _retire(self, process: _SolverProcess) -> None:
        with self._lock:
            waits = self._timers.pop(process, None) is not None
        if waits:
            process.kill()

    def end_all(self) -> None:
        """End those that wait: the caller ends."""
        for process in list(self._timers):
            self._retire(process)


_waiting = _WaitingProcesses()
atexit.register(_waiting.end_all)
os.register_at_fork(after_in_child=_waiting.forget_all)


def _talk(child: subprocess.Popen[bytes], request: bytes, lines: queue.Queue[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # it has ended: what it said comes first
        child.stdin.write(request)
        child.stdin.flush()
    for line in child.stdout:
        lines.put(line)
        if line == END:
            return
    lines.put(b"")


def _ending(code: int, stderr: bytes) -> str:
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"failed (exit code {code}): {lines[-1] if lines else 'it said nothing'}"
