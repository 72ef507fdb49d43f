"""The order in which the calls of a step's programs are made, and simulated."""

from __future__ import annotations

from partitioner.ir.stage_programs import StagePrograms
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind, device_orders, merged_order


def step_order(programs: StagePrograms, kind: ScheduleKind, num_microbatches: int) -> tuple[Action, ...]:
    """The forwards and backwards of all stages in the order of a schedule, as far as there are programs for them.

    Raises:
        UsageError: The schedule does not go with the stages or the number of microbatches.
    """
    orders = device_orders(kind, programs.stages, num_microbatches, training=bool(programs.backward))
    parted = {program.stage for program in programs.weights}
    called = {
        device: [action for action in actions if action.kind is not ActionKind.WEIGHTS or action.stage in parted]
        for device, actions in orders.items()
    }
    return merged_order(called, len(programs.stages))
