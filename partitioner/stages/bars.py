"""Bars of a timeline for a device that runs its ops as one graph: ops of one kind without a longer break."""

from __future__ import annotations

from collections.abc import Iterable

from partitioner.ir.op_graph import Phase
from partitioner.ir.plan import PlannedAction
from partitioner.stages.actions import UPDATE, Action, ActionKind

Run = tuple[Phase, float, float]
"""An op that ran: the phase it belongs to, start and end in seconds."""

# A device that waits for less than this share of the step goes on with the same bar.
_BREAK_SHARE = 0.005
_KINDS = {Phase.FORWARD: ActionKind.FORWARD, Phase.BACKWARD: ActionKind.BACKWARD}


def bars_of_runs(runs: Iterable[Run], *, device: str, stage: int, step_seconds: float) -> list[PlannedAction]:
    """The bars of a device, one after the other.

    Args:
        runs: Its ops; they may overlap.
        device: Its name.
        stage: Its stage.
        step_seconds: Of the whole step.
    """
    longest_break = _BREAK_SHARE * step_seconds
    bars: list[Run] = []
    for phase, start, end in sorted(runs, key=lambda run: run[1:]):
        # A short bar between two of one kind is part of them.
        if len(bars) > 1 and bars[-2][0] == phase != bars[-1][0]:
            between = max(start, bars[-1][2]) - bars[-2][2]
            if between <= longest_break:
                end = max(end, bars.pop()[2])
        if bars and bars[-1][0] == phase and start - bars[-1][2] <= longest_break:
            bars[-1] = phase, bars[-1][1], max(bars[-1][2], end)
        elif not bars or end > bars[-1][2]:  # what lies within another bar is not shown
            bars.append((phase, max(start, bars[-1][2]) if bars else start, end))
    return [_action(bar, device, stage) for bar in bars]


def _action(bar: Run, device: str, stage: int) -> PlannedAction:
    phase, start, end = bar
    kind = _KINDS.get(phase)
    action = str(Action(stage, kind, 0)) if kind else UPDATE
    return PlannedAction(action=action, device=device, start_seconds=start, end_seconds=end)
