"""A solver as a process of its own, both ends: requests go in as lines, and answers come back line by line.

OR-Tools crashes in a process that has loaded TensorFlow, and a search must be killable at any time.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TextIO

from partitioner.deadline import Deadline

_SECONDS_BETWEEN_LOOKS = 0.5


class SolverProcessError(Exception):
    """The process did not start, or ended with an exit code or by a signal; the text says how."""


def answers(module: str, request: str, seconds: float) -> Generator[bytes, None, None]:
    """Run a module on one request, and give the lines that it writes as they come.

    The process is killed when the iterator is closed: wrap it in `contextlib.closing`.

    Args:
        module: Name of a module whose `__main__` writes to `answer_stream()`.
        request: A line of JSON.
        seconds: How long the process may take.

    Raises:
        SolverProcessError: It did not start, or failed.
        TimeoutError: It has not ended in time.
    """
    deadline = Deadline.after(seconds)
    with TemporaryFile() as stdin, TemporaryFile() as stderr:
        stdin.write(request.encode() + b"\n")
        stdin.seek(0)
        child = _started(module, stdin, stderr)
        assert child.stdout is not None
        lines: queue.Queue[bytes] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            while line := lines.get(timeout=deadline.seconds_left):
                yield line
            if code := child.wait(deadline.seconds_left):
                stderr.seek(0)
                raise SolverProcessError(f"the solver {_ending(code, stderr.read())}")
        except (queue.Empty, subprocess.TimeoutExpired):
            raise TimeoutError from None
        finally:
            child.kill()
            child.wait()
            reader.join()
            child.stdout.close()


def answer_stream() -> TextIO:
    """Where the process writes its answers: stdout, on which nothing that a library prints may come between them.

    From now on the process ends when the one that asks has ended, whatever ended it.
    """
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _started(module: str, stdin: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    # -P: the directory the user works in must not shadow a module of ours.
    command = [sys.executable, "-P", "-m", module, str(os.getpid())]
    search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    environment = os.environ | {"PYTHONPATH": search_path}
    try:
        # Its own process group: Ctrl-C is ours.
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=environment, process_group=0
        )
    except OSError as error:
        raise SolverProcessError(f"the solver did not start: {error}") from error


def _read_lines(stdout: IO[bytes], lines: queue.Queue[bytes]) -> None:
    for line in stdout:
        lines.put(line)
    lines.put(b"")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _ending(code: int, stderr: bytes) -> str:
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"failed (exit code {code}): {lines[-1] if lines else 'it said nothing'}"
