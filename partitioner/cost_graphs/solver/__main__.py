"""The solver's process: problems as JSON, one per line of stdin; a line of stdout for each improvement."""

from __future__ import annotations

import sys

from partitioner.cost_graphs.solver.client import END
from partitioner.cost_graphs.solver.portfolio import solve_in_process
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import from_json, to_json
from partitioner.solver_process import answer_stream


def main() -> None:
    """Solve problems until stdin ends."""
    answers = answer_stream()

    def send(answer: MaxLoadAnswer) -> None:
        answers.write(to_json(answer) + "\n")
        answers.flush()

    for line in sys.stdin.buffer:
        send(solve_in_process(from_json(line, MaxLoadProblem), send))
        send(MaxLoadAnswer(status=END, lower_bound=0))


if __name__ == "__main__":
    main()
