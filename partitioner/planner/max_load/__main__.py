"""The solver's process: a problem as JSON on stdin, a line of JSON for each improvement on stdout."""

from __future__ import annotations

import os
import sys

from partitioner.ir.json import from_json, to_json
from partitioner.ir.max_load import MaxLoadAnswer, MaxLoadProblem
from partitioner.planner.max_load.portfolio import solve_in_process


def main() -> None:
    """Solve the problem on stdin."""
    # Only answers may reach stdout: whatever a library prints there goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(answer: MaxLoadAnswer) -> None:
        answers.write(to_json(answer) + "\n")
        answers.flush()

    tell(solve_in_process(from_json(sys.stdin.buffer.read(), MaxLoadProblem), tell))
    tell(MaxLoadAnswer(status="end", lower_bound=0))


if __name__ == "__main__":
    main()
