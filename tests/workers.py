"""Workers in processes of their own, and the lines that a process prints, each waited for but not for ever."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 300.0


class Worker:
    """A running worker, and where it listens."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        command = (sys.executable, "-m", "partitioner.worker", "--port", str(port))
        self.folder = folder
        # In a folder of its own: what it writes to relative paths must not be taken for what the other process writes.
        self.process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
        line = Lines(self.process).next()
        match = re.fullmatch(r"listening on port (\d+) with CPU:0\n", line)
        assert match, line
        self.port = match[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def worker_in(folder: Path, port: int = 0) -> Iterator[Worker]:
    """A worker that ends with the block."""
    worker = Worker(folder, port)
    try:
        yield worker
    finally:
        worker.kill()


class Lines:
    """Lines that a process prints, each waited for no longer than `SECONDS`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def next(self) -> str:
        """The next line; empty if there is none any more."""
        return self._lines.get(timeout=SECONDS)

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put("")


def go_on(stream: Any) -> None:
    """Answer the `input()` of a process."""
    stream.write("\n")
    stream.flush()


def environment(**more: str) -> dict[str, str]:
    """This process's variables, by which another one finds the packages of this checkout, and `more`."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **more}
