"""A process that does a fixed piece of work for each line on stdin, and answers with its seconds."""

from __future__ import annotations

import sys
import time

_ITERATIONS = 1_000_000


def _seconds() -> float:
    start, total = time.perf_counter(), 0
    for number in range(_ITERATIONS):
        total += number * number
    return time.perf_counter() - start


if __name__ == "__main__":
    for _ in sys.stdin:
        print(_seconds(), flush=True)
