"""The process: one request as JSON per line of stdin, one answer as JSON per line of stdout."""

from __future__ import annotations

import sys

from partitioner.ir.json import from_json, to_json
from partitioner.planner.pipeline.solve.closer import closer_steps
from partitioner.planner.pipeline.solve.problem import BoundAnswer, BoundRequest
from partitioner.solver_process import answer_stream


def main() -> None:
    """Answer requests until stdin ends."""
    stream = answer_stream()
    for line in sys.stdin.buffer:
        stream.write(to_json(BoundAnswer(steps=closer_steps(from_json(line, BoundRequest)))) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
