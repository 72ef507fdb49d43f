"""The bars of the predicted timeline: what devices do, and what is on its way between them."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import MOST_BARS, PlannedAction, PlannedTransfer, Stage
from partitioner.planner.layouts.result import SearchResult
from partitioner.stages.bars import Run, bars_of_runs


def planned_timeline(graph: OpGraph, result: SearchResult, stages: Sequence[Stage]) -> tuple[PlannedAction, ...]:
    """What the devices of the first replica do."""
    if result.staged is not None:
        return result.staged.timeline[:MOST_BARS]
    stage_of = {stage.device: stage.index for stage in stages}
    runs: dict[str, list[Run]] = {device: [] for device in stage_of}
    for run in result.schedule.runs:
        runs[run.device].append((graph.op[run.op].phase, run.start_seconds, run.end_seconds))
    step_seconds = result.schedule.step_seconds
    bars = [
        bar
        for device, stage in stage_of.items()
        for bar in bars_of_runs(runs[device], device=device, stage=stage, step_seconds=step_seconds)
    ]
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
