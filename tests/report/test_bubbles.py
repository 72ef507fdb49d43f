"""Idle times with their causes, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.ir.plan import PlanDocument, PlannedTransfer
from partitioner.report.bubbles import bubbles


def idle(plan: PlanDocument) -> list[tuple[str, int, int, str]]:
    """Device, first and last slot of 100 us, cause."""
    return [
        (bubble.device[-5:], round(bubble.start_seconds * 1e4), round(bubble.end_seconds * 1e4), bubble.cause)
        for bubble in bubbles(plan)
    ]


def test_fill_wait_and_drain(pipeline_plan: PlanDocument) -> None:
    # GPU:0 "0F0 0F1  .  0B0 0F2 0B1 0F3 0B2  .  0B3 U U", GPU:1 " .  1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3  .  U U"
    assert idle(pipeline_plan) == [
        ("GPU:0", 2, 3, "wait"), ("GPU:0", 8, 9, "wait"), ("GPU:1", 0, 1, "fill"), ("GPU:1", 9, 10, "drain"),
    ]  # fmt: skip


@pytest.mark.parametrize(("start", "cause"), [(2.2, "transfer"), (2.8, "wait")])
def test_what_is_on_its_way_for_most_of_the_time_is_the_cause(
    pipeline_plan: PlanDocument, start: float, cause: str
) -> None:
    first, second = (device.name for device in pipeline_plan.devices[:2])
    sent = PlannedTransfer(
        op="dense/MatMul_grad", layer="dense", source=second, target=first, size_bytes=1 << 20,
        start_seconds=start * 1e-4, end_seconds=3e-4,
    )  # fmt: skip
    (bubble, *_) = bubbles(replace(pipeline_plan, transfers=(sent,)))
    assert bubble.cause == cause
    expected = {"transfer": "dense is on its way from GPU:1", "wait": "GPU:1 has not made what it works on next"}
    assert bubble.reason == expected[cause]


def test_a_device_whose_part_ends_early_drains_to_the_end(pipeline_plan: PlanDocument) -> None:
    timeline = tuple(bar for bar in pipeline_plan.timeline if bar.action != "U" or bar.device.endswith("GPU:0"))
    assert idle(replace(pipeline_plan, timeline=timeline))[-1] == ("GPU:1", 9, 12, "drain")


def test_idle_times_and_work_make_up_the_step(interleaved_plan: PlanDocument) -> None:
    idle_seconds = sum(bubble.end_seconds - bubble.start_seconds for bubble in bubbles(interleaved_plan))
    assert idle_seconds == pytest.approx(2 * 1.8e-3 * interleaved_plan.predicted.bubble_fraction)
