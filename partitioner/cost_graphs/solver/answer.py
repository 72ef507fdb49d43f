"""The solver's end: a problem as JSON, and a line for each improvement."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.cost_graphs.solver.portfolio import solve_in_process
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import from_json, to_json


def answer(request: bytes, send: Callable[[str], None]) -> None:
    """Send each better answer to a problem, and at last the best."""

    def report(better: MaxLoadAnswer) -> None:
        send(to_json(better))

    report(solve_in_process(from_json(request, MaxLoadProblem), report))
