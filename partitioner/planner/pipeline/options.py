"""The microbatches, schedules and recompute that options allow for a step; others are refused with the reason."""

from __future__ import annotations

from typing import Literal

from partitioner.errors import UsageError
from partitioner.ir.step import CapturedStep
from partitioner.planner.pipeline.search_space import PREFERENCE
from partitioner.spelling import argument
from partitioner.stages.coupling import batch_coupling, one_pass_at_a_time
from partitioner.stages.schedules import ScheduleKind

# With more than two for each stage, filling and draining (S - 1 of M + S - 1) gains little, and few rows run far below
# a device's peak.
_MOST_MICROBATCHES = 32
_MOST_PER_DEVICE = 2


def refuse_uncuttable(step: CapturedStep, num_replicas: int) -> None:
    """Refuse replicas for a step whose batch cannot be cut.

    Raises:
        UsageError: With the reason.
    """
    if num_replicas > 1 and (reason := uncuttable(step)):
        raise UsageError(
            f"the batch cannot be cut into replicas: {reason}",
            help=f"{argument('strategy', 'auto')} without {argument('replicas')}",
        )


def allowed_counts(step: CapturedStep, asked: int | str, num_devices: int) -> tuple[int, ...]:
    """Numbers of microbatches to choose from: the requested number, or powers of two, more for many devices.

    With `auto`, a step whose results would change (batch normalization, dropout) has one microbatch.

    Raises:
        UsageError: Not a number of microbatches, more than there are rows, or the step cannot be cut.
    """
    rows = step.graph.batch_size
    if asked == "auto":
        if uncuttable(step) or batch_coupling(step.graph):
            return (1,)
        most = min(rows, max(_MOST_MICROBATCHES, _MOST_PER_DEVICE * num_devices))
        return tuple(2**n for n in range(most.bit_length()))
    if not isinstance(asked, int) or asked < 1:
        raise UsageError(f"microbatches is {asked!r}, expected 'auto' or a whole number of at least 1")
    if asked > rows:
        raise UsageError(
            f"{asked} microbatches of a batch of {rows} rows: some would have none",
            help=f"at most {argument('microbatches', rows)}, or at least {argument('batch_size', asked)}",
        )
    if asked > 1 and (reason := uncuttable(step)):
        raise UsageError(f"the batch cannot be cut into microbatches: {reason}", help=argument("microbatches", 1))
    return (asked,)


def allowed_schedules(asked: str) -> tuple[ScheduleKind, ...]:
    """Schedules to choose from.

    Raises:
        UsageError: There is no such schedule.
    """
    if asked == "auto":
        return PREFERENCE
    try:
        return (ScheduleKind(asked),)
    except ValueError as error:
        schedules = ", ".join(ScheduleKind)
        raise UsageError(f"unknown schedule {asked!r}", notes=[f"this version has: auto, {schedules}"]) from error


def allowed_recompute(asked: str) -> Literal["auto", "none", "all"]:
    """Whether stages may, must or must not recompute.

    Raises:
        UsageError: It is none of these.
    """
    match asked:
        case "auto" | "none" | "all":
            return asked
    raise UsageError(f"unknown recompute {asked!r}", notes=["this version has: auto, none, all"])


def microbatch_notes(
    step: CapturedStep, num_microbatches: int, asked: int | str, *, num_replicas: int = 1
) -> tuple[str, ...]:
    """Notes of the plan: what microbatches and replicas change in the results, or why there are none."""
    coupled = batch_coupling(step.graph)
    if num_replicas > 1:
        return tuple(f"unlike on one device, {sentence}" for sentence in batch_coupling(step.graph, replicas=True))
    if num_microbatches > 1:
        return tuple(f"unlike with the whole batch, {sentence}" for sentence in coupled)
    if asked != "auto":
        return ()
    if reason := uncuttable(step):
        return (f"the batch runs in one piece: {reason}",)
    if not coupled:
        return ()
    return (
        "the batch runs in one piece, because microbatches would change the numbers: "
        f"{'; '.join(coupled)}; 8 microbatches cut it all the same",
    )


def uncuttable(step: CapturedStep) -> str:
    """Why the batch of a step cannot be cut; empty if it can."""
    return step.uncuttable or one_pass_at_a_time(step.graph)
