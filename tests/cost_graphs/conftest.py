"""The solver's process for all problems, as another test may have imported TensorFlow into this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.ir.json import from_json, to_json
from partitioner.solver_process.client import answers

Solve = Callable[[MaxLoadProblem], list[MaxLoadAnswer]]


@pytest.fixture(scope="session")
def solve() -> Solve:
    """All that the process tells of a problem, the answer last."""

    def ask(problem: MaxLoadProblem) -> list[MaxLoadAnswer]:
        with closing(answers("partitioner.cost_graphs.solver.answer", to_json(problem), 600)) as lines:
            return [from_json(line, MaxLoadAnswer) for line in lines]

    return ask
