"""One solver process for all problems, as another test may have imported TensorFlow into this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import from_json, to_json

Solve = Callable[[MaxLoadProblem], list[MaxLoadAnswer]]


@pytest.fixture(scope="session")
def solve() -> Iterator[Solve]:
    """All that the process tells of a problem, the answer last."""
    command = [sys.executable, "-m", "partitioner.cost_graphs.solver", str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        asked, answered = child.stdin, child.stdout
        assert asked is not None and answered is not None

        def ask(problem: MaxLoadProblem) -> list[MaxLoadAnswer]:
            asked.write(to_json(problem).encode() + b"\n")
            asked.flush()
            told = []
            while not told or told[-1].status != "end":
                told.append(from_json(answered.readline(), MaxLoadAnswer))
            return told[:-1]

        yield ask
        asked.close()
