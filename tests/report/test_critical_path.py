"""Which transfers a step waits for: timelines drawn by hand."""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.plan import PlanDocument, PlannedTransfer
from partitioner.report.critical_path import critical_transfers
from tests.timelines import GPU0, GPU1, timeline

MS = 1e-3


def sent(op: str, start: float, end: float, *, source: str = GPU0, target: str = GPU1) -> PlannedTransfer:
    """A transfer from one millisecond to another."""
    return PlannedTransfer(
        op=op, layer="", source=source, target=target, size_bytes=8, start_seconds=start * MS, end_seconds=end * MS
    )


def waited_for(plan: PlanDocument, rows: dict[str, str], *transfers: PlannedTransfer) -> list[str]:
    bars = timeline(rows, slot_seconds=MS)
    end = max(bar.end_seconds for bar in bars)
    plan = replace(plan, timeline=bars, transfers=transfers, predicted=replace(plan.predicted, step_seconds=end))
    return [transfer.op for transfer in critical_transfers(plan)]


def test_there_and_back(split_plan: PlanDocument) -> None:
    rows = {GPU0: "0F0 . . . . . 0B0 U", GPU1: ". . 1F0 1F0 1B0 . . ."}
    there, back = sent("there", 1, 2), sent("back", 5, 6, source=GPU1, target=GPU0)
    assert waited_for(split_plan, rows, there, back) == ["there", "back"]


def test_a_transfer_beside_compute_is_not_waited_for(split_plan: PlanDocument) -> None:
    """GPU:1 still computes microbatch 0 when microbatch 1 arrives."""
    rows = {GPU0: "0F0 0F1 . . . . .", GPU1: ". . 1F0 1F0 1F0 1F1 1F1"}
    assert waited_for(split_plan, rows, sent("first", 1, 2), sent("second", 2, 3)) == ["first"]


def test_transfers_wait_for_each_other_on_the_link(split_plan: PlanDocument) -> None:
    """Both tensors are made by 2 ms; the second leaves when the first has arrived, and nothing is computed then."""
    rows = {GPU0: "0F0 0F1 . . . . . .", GPU1: ". . . . 1F0 . . 1F1"}
    assert waited_for(split_plan, rows, sent("first", 1, 4), sent("second", 4, 7)) == ["first", "second"]


def test_a_sum_of_gradients_is_waited_for(split_plan: PlanDocument) -> None:
    rows = {GPU0: "0F0 0B0 . . U"}
    assert waited_for(split_plan, rows, sent("", 2, 4, target="")) == [""]


def test_no_time_on_the_way_is_followed_too(split_plan: PlanDocument) -> None:
    """CPUs of a process pass buffers at once: what their maker waited for counts."""
    rows = {GPU0: "0F0 . . . 0B0", GPU1: ". . . 1F0 ."}
    free = sent("free", 4, 4, source=GPU1, target=GPU0)
    assert waited_for(split_plan, rows, sent("slow", 1, 3), free) == ["slow", "free"]


def test_without_bars_there_is_no_path(split_plan: PlanDocument) -> None:
    assert critical_transfers(split_plan) == ()
