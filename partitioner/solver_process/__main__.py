"""The process: requests come as lines of stdin, each with the module that answers it; answers go to stdout."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib import import_module
from typing import TextIO

_SECONDS_BETWEEN_LOOKS = 0.5
# What takes longest to import: it is there when the first request comes.
_LIBRARIES = ("ortools.sat.python.cp_model", "ortools.linear_solver.pywraplp")


def main() -> None:
    """Answer requests until stdin ends."""
    stream = _answer_stream()
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    for name in _LIBRARIES:
        import_module(name)

    def send(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    for line in sys.stdin.buffer:
        solver, _, request = line.partition(b" ")
        import_module(solver.decode()).answer(request, send)
        send("")


def _answer_stream() -> TextIO:
    """Where answers go: stdout, on which nothing that a library prints may come between them."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _end_with(parent: int) -> None:
    """Stdin ends with the one that asks, but a search does not look at it."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


if __name__ == "__main__":
    main()
