"""Ask the process for bounds: whatever happens there, what is known already holds."""

from __future__ import annotations

from contextlib import closing

import msgspec

from partitioner.ir.json import from_json, to_json
from partitioner.planner.pipeline.solve.problem import BoundAnswer, BoundRequest, LeastStep
from partitioner.solver_process.client import SolverProcessError, answers

_SOLVER = "partitioner.planner.pipeline.solve.answer"
_GRACE_SECONDS = 5.0


def least_steps(request: BoundRequest) -> tuple[LeastStep, ...]:
    """What is found in the solver's process, which is killed some seconds after its time.

    When it crashes, is killed or answers nonsense, the bounds of the request.

    Raises:
        KeyboardInterrupt: Ctrl-C; the process has been killed.
    """
    known = tuple(LeastStep(seconds=problem.bound_seconds) for problem in request.problems)
    try:
        with closing(answers(_SOLVER, to_json(request), request.seconds + _GRACE_SECONDS)) as lines:
            found = from_json(b"".join(lines), BoundAnswer).steps
    except (TimeoutError, SolverProcessError, msgspec.DecodeError):
        return known
    return found if len(found) == len(known) else known
