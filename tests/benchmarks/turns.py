"""Contenders that take turns: each is a process of its own, because TensorFlow fixes its threads when it starts.

A contender gets ready, says so with one line of JSON, and then answers each line it is given with seconds. All get
ready one after the other; then they go in turns, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What a contender said when it was ready, and the seconds of each of its turns."""

    said: Mapping[str, Any]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds of a turn."""
        return statistics.median(self.seconds)


def take_turns(
    contenders: Mapping[str, Sequence[object]],
    rounds: int,
    *,
    is_enough: Callable[[Mapping[str, Contender]], bool] = lambda _: False,
) -> dict[str, Contender]:
    """Start the contenders and let them take turns.

    Args:
        contenders: By name, a module that answers with `answer_turns`, and its arguments.
        rounds: Turns of each; fewer once they are enough.
        is_enough: Whether the turns so far are.

    Raises:
        SystemExit: A contender ended before its time.
    """
    processes: dict[str, Any] = {}
    try:
        found: dict[str, Contender] = {}
        for name, command in contenders.items():
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            found[name] = Contender(said=json.loads(_answer(name, processes[name])))
        for _ in range(rounds):
            for name, process in processes.items():
                process.stdin.write("go\n")
                process.stdin.flush()
                found[name].seconds.append(float(_answer(name, process)))
            if is_enough(found):
                break
        return found
    finally:
        for process in processes.values():
            process.stdin.close()
        for process in processes.values():
            process.wait()


def answer_turns(
    turn: Callable[[], object], said: Mapping[str, Any] | None = None, *, warmups: int = 5, seconds: float = 0.0
) -> None:
    """Be a contender: run `turn` some times, say so, then once more for each line on stdin.

    With `seconds`, it runs for so long each time, and the median run counts: the first finds others' data in caches.
    """
    for _ in range(warmups):
        turn()
    print(json.dumps(said or {}), flush=True)
    for _ in sys.stdin:
        runs: list[float] = []
        while not runs or sum(runs) < seconds:
            start = time.perf_counter()
            turn()
            runs.append(time.perf_counter() - start)
        print(statistics.median(runs), flush=True)


def _answer(name: str, process: Any) -> str:
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"the contender {name!r} ended with exit code {process.wait()}")
    return answer
