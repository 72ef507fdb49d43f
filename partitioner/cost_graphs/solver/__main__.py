"""The solver's process: problems as JSON, one per line of stdin; a line of stdout for each improvement."""

from __future__ import annotations

import os
import sys

from partitioner.cost_graphs.solver.client import END
from partitioner.cost_graphs.solver.portfolio import solve_in_process
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import from_json, to_json


def main() -> None:
    """Solve problems until stdin ends."""
    # Only answers may reach stdout: prints of libraries go to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(answer: MaxLoadAnswer) -> None:
        answers.write(to_json(answer) + "\n")
        answers.flush()

    for line in sys.stdin.buffer:
        send(solve_in_process(from_json(line, MaxLoadProblem), send))
        send(MaxLoadAnswer(status=END, lower_bound=0))


if __name__ == "__main__":
    main()
