"""Whether the machine has its cores free: several busy loops at once take as long as one alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

LEAST_SHARE = 0.9
"""Of the cores that busy loops must get; a core's clock falls a little when others work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLoops:
    """Processes that wait for a word to work, and what they took so far.

    Attributes:
        processes: As many as cores are wanted.
        alone: Seconds of one loop by itself, for each call of `run`.
        together: Seconds of all at once, the slowest of them.
    """

    processes: Sequence[subprocess.Popen[str]]
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run one loop, then all at once."""
        self.alone.append(max(_run(self.processes[:1])))
        self.together.append(max(_run(self.processes)))

    @property
    def cores(self) -> tuple[float, ...]:
        """Cores that the loops got in each call of `run`: work done at once over that of the fastest loop alone."""
        fastest = min(self.alone, default=0.0)
        return tuple(len(self.processes) * fastest / seconds for seconds in self.together)

    @property
    def disturbed(self) -> tuple[int, ...]:
        """Numbers of the calls in which they got too few."""
        least = LEAST_SHARE * len(self.processes)
        return tuple(number for number, cores in enumerate(self.cores) if cores < least)


@contextmanager
def busy_loops(count: int) -> Iterator[BusyLoops]:
    """Start `count` busy loops, which do nothing until they are run."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-P", "-m", "partitioner.timing.busy_loop"]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        _run(processes)  # they import Python's own modules first
        yield BusyLoops(processes=processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                _pipe(pipe).close()


def _run(processes: Sequence[subprocess.Popen[str]]) -> list[float]:
    for process in processes:
        stdin = _pipe(process.stdin)
        stdin.write("go\n")
        stdin.flush()
    return [float(_pipe(process.stdout).readline()) for process in processes]


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
