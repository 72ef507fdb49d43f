"""The solver's end: problems as JSON, and a bound for each as JSON."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.ir.json import from_json, to_json
from partitioner.planner.pipeline.solve.closer import closer_steps
from partitioner.planner.pipeline.solve.problem import BoundAnswer, BoundRequest


def answer(request: bytes, send: Callable[[str], None]) -> None:
    """Send the bounds of a request's problems."""
    send(to_json(BoundAnswer(steps=closer_steps(from_json(request, BoundRequest)))))
