"""The bars of the predicted timeline: what devices do, and what is on its way between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.ir.plan import MOST_BARS, PlannedAction, PlannedTransfer, Stage
from partitioner.ir.schedule import OpRun
from partitioner.planner.layouts.result import SearchResult
from partitioner.stages.actions import UPDATE, Action, ActionKind

# A device that waits for less than this share of the step goes on with the same bar.
_BREAK_SHARE = 0.005
_KINDS = {Phase.FORWARD: ActionKind.FORWARD, Phase.BACKWARD: ActionKind.BACKWARD}


def planned_timeline(graph: OpGraph, result: SearchResult, stages: Sequence[Stage]) -> tuple[PlannedAction, ...]:
    """What the devices of the first replica do."""
    if result.staged is not None:
        return result.staged.timeline[:MOST_BARS]
    stage_of = {stage.device: stage.index for stage in stages}
    bars = [bar for device in stage_of for bar in _bars(graph, result, device, stage_of[device])]
    return tuple(sorted(bars, key=lambda bar: (bar.start_seconds, bar.device))[:MOST_BARS])


def planned_transfers(graph: OpGraph, result: SearchResult) -> tuple[PlannedTransfer, ...]:
    """What devices of the first replica send, and the sums of their gradients over all replicas."""
    transfers = [
        PlannedTransfer(
            op=(maker := graph.op[graph.tensor[send.tensor].producer]).name,
            layer=maker.layer,
            source=send.source,
            target=send.target,
            size_bytes=send.size_bytes,
            start_seconds=send.start_seconds,
            end_seconds=send.end_seconds,
        )
        for send in result.schedule.sends
        if send.size_bytes
    ]
    transfers += [
        PlannedTransfer(
            op="",
            layer="",
            source=exchange.devices[0],
            target="",
            size_bytes=exchange.bytes_per_pair * (len(exchange.devices) - 1),
            start_seconds=exchange.start_seconds,
            end_seconds=exchange.end_seconds,
        )
        for exchange in result.exchanges
        if exchange.devices[0] in result.schedule.busy_seconds
    ]
    ordered = sorted(transfers, key=lambda sent: (sent.start_seconds, sent.end_seconds, sent.source, sent.target))
    return tuple(ordered[:MOST_BARS])


def _bars(graph: OpGraph, result: SearchResult, device: str, stage: int) -> Iterator[PlannedAction]:
    """The bars of a device that runs its ops as one graph."""
    longest_break = _BREAK_SHARE * result.schedule.step_seconds
    runs = sorted((run for run in result.schedule.runs if run.device == device), key=lambda run: run.start_seconds)
    bar: list[OpRun] = []
    for run in runs:
        goes_on = bar and _kind(graph, bar[0]) == _kind(graph, run)
        if bar and not (goes_on and run.start_seconds - bar[-1].end_seconds <= longest_break):
            yield _action(graph, bar, stage)
            bar = []
        bar.append(run)
    if bar:
        yield _action(graph, bar, stage)


def _kind(graph: OpGraph, run: OpRun) -> ActionKind | None:
    return _KINDS.get(graph.op[run.op].phase)


def _action(graph: OpGraph, bar: Sequence[OpRun], stage: int) -> PlannedAction:
    kind = _kind(graph, bar[0])
    return PlannedAction(
        action=str(Action(stage, kind, 0)) if kind else UPDATE,
        device=bar[0].device,
        start_seconds=bar[0].start_seconds,
        end_seconds=bar[-1].end_seconds,
    )
