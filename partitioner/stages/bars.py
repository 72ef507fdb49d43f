"""Bars of a timeline for a device that runs its ops as one graph: ops of one kind without a longer break."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from partitioner.ir.op_graph import Phase
from partitioner.ir.plan import PlannedAction
from partitioner.stages.actions import UPDATE, Action, ActionKind

Run = tuple[Phase, float, float]
"""An op that ran: the phase it belongs to, start and end in seconds."""

# A device that waits for less than this share of the step goes on with the same bar.
_BREAK_SHARE = 0.005
_KINDS = {Phase.FORWARD: ActionKind.FORWARD, Phase.BACKWARD: ActionKind.BACKWARD}


def bars_of_runs(runs: Iterable[Run], *, device: str, stage: int, step_seconds: float) -> Iterator[PlannedAction]:
    """The bars of a device, one after the other.

    Args:
        runs: Its ops; they may overlap.
        device: Its name.
        stage: Its stage.
        step_seconds: Of the whole step.
    """
    bar: Run | None = None
    for phase, start, end in sorted(runs, key=lambda run: run[1:]):
        if bar is None:
            bar = phase, start, end
        elif bar[0] == phase and start - bar[2] <= _BREAK_SHARE * step_seconds:
            bar = phase, bar[1], max(bar[2], end)
        elif end > bar[2]:  # what lies within another bar is not shown
            yield _action(bar, device, stage)
            bar = phase, max(start, bar[2]), end
    if bar is not None:
        yield _action(bar, device, stage)


def _action(bar: Run, device: str, stage: int) -> PlannedAction:
    phase, start, end = bar
    kind = _KINDS.get(phase)
    action = str(Action(stage, kind, 0)) if kind else UPDATE
    return PlannedAction(action=action, device=device, start_seconds=start, end_seconds=end)
