"""What limits a step: the diagnosis behind the report, `partition explain`, and the moves that it plans."""

from __future__ import annotations

from partitioner.ir.plan import Objective, PlanDocument
from partitioner.report.limit_kinds import KINDS, Limit, LimitKind
from partitioner.report.step_figures import StepFigures

LEAST_LOSS = 0.2
"""A loss below this share of the step does not limit it, but compute does. S stages in M microbatches idle
(S-1)/(M+S-1) of a step, less than a fifth from M = 4 (S-1) on; Huang et al. 2019, "GPipe", section 2.3, call that
negligible from M = 4 S on."""
_LEAST_SHOWN = 5e-4


def limits(plan: PlanDocument) -> tuple[Limit, ...]:
    """Everything that takes a part of the step; the first limits it.

    Memory is first if it costs much, as a candidate that does not fit would lose less to the others; then the greatest
    loss; compute, which no schedule avoids, where all losses are small.
    """
    if not plan.stages:
        return ()
    step = StepFigures(plan=plan)
    is_objective = plan.objective is Objective.MEMORY
    found = [limit for describe in KINDS if (limit := describe(step)) is not None]

    def is_shown(limit: Limit) -> bool:
        return limit.share >= _LEAST_SHOWN or (is_objective and limit.kind is LimitKind.MEMORY)

    def rank(limit: Limit) -> tuple[int, float]:
        if limit.kind is LimitKind.MEMORY and (is_objective or limit.share >= LEAST_LOSS):
            return 0, 0.0
        if limit.kind is LimitKind.COMPUTE:
            return 2, 0.0
        return 1 if limit.share >= LEAST_LOSS else 3, -limit.share

    return tuple(sorted(filter(is_shown, found), key=rank))
