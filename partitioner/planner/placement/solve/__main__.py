"""The solver's process: one problem as JSON per line of stdin, one solution as JSON per line of stdout."""

from __future__ import annotations

import os
import sys

from partitioner.ir.json import from_json, to_json
from partitioner.ir.problem import PlacementProblem
from partitioner.planner.placement.solve.search import solve_in_process


def main() -> None:
    """Answer problems until stdin ends."""
    # Only answers may reach stdout: output of libraries goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        answers.write(to_json(solve_in_process(from_json(line, PlacementProblem))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
