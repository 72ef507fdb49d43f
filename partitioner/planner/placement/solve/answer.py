"""The solver's end: a problem as JSON, and its solution as JSON."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.ir.json import from_json, to_json
from partitioner.ir.problem import PlacementProblem
from partitioner.planner.placement.solve.search import solve_in_process


def answer(request: bytes, send: Callable[[str], None]) -> None:
    """Send the solution of a problem."""
    send(to_json(solve_in_process(from_json(request, PlacementProblem))))
