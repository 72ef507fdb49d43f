"""timeline.json: its events against the plan, and that tracks can be drawn."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from partitioner.ir.plan import MeasuredStep, PlanDocument, PlannedAction, PlannedTransfer
from partitioner.report.trace_events import to_trace_events


def with_everything(plan: PlanDocument) -> PlanDocument:
    """Two transfers, a sum of gradients, and a measured step that took twice as long."""
    first, second = (device.name for device in plan.devices[:2])
    sent = {"op": "conv2d/Relu", "layer": "conv2d", "source": first, "target": second, "size_bytes": 4096}
    transfers = (
        PlannedTransfer(**sent, start_seconds=1e-4, end_seconds=1.5e-4),
        PlannedTransfer(**sent, start_seconds=2e-4, end_seconds=2.5e-4),
        PlannedTransfer(op="", layer="", source=first, target="", size_bytes=1 << 20, start_seconds=1e-3,
                        end_seconds=1.1e-3),
    )  # fmt: skip
    slower = tuple(
        PlannedAction(action=bar.action, device=bar.device, start_seconds=2 * bar.start_seconds,
                      end_seconds=2 * bar.end_seconds)
        for bar in plan.timeline
    )  # fmt: skip
    measured = MeasuredStep(
        step_seconds=2.2e-3, num_steps=5, ran_on={first: first, second: "/job:localhost/replica:0/task:0/device:CPU:1"},
        timeline=slower,
    )  # fmt: skip
    return replace(plan, transfers=transfers, measured=measured)


@pytest.fixture
def events(pipeline_plan: PlanDocument) -> list[dict[str, Any]]:
    return json.loads(to_trace_events(with_everything(pipeline_plan)))["traceEvents"]


def names(events: list[dict[str, Any]], what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == what}


def test_a_process_for_each_device_predicted_and_measured(events: list[dict[str, Any]]) -> None:
    assert list(names(events, "process_name").values()) == [
        "predicted step", "predicted GPU:0", "predicted GPU:1",
        "measured step", "measured GPU:0", "measured GPU:1 on CPU:1",
    ]  # fmt: skip


def test_bars_have_the_names_and_times_of_the_plan(pipeline_plan: PlanDocument, events: list[dict[str, Any]]) -> None:
    process = {pid: name for (pid, _), name in names(events, "process_name").items()}
    slices = [(process[e["pid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 1]
    predicted = [(n, start, duration) for p, n, start, duration in slices if p == "predicted GPU:0"]
    expected = [b for b in pipeline_plan.timeline if b.device.endswith("GPU:0")]
    assert [n for n, _, _ in predicted] == [bar.action for bar in expected]
    assert [start for _, start, _ in predicted] == pytest.approx([bar.start_seconds * 1e6 for bar in expected])
    measured = [(n, start, duration) for p, n, start, duration in slices if p == "measured GPU:0"]
    assert [(n, 2 * start, 2 * took) for n, start, took in predicted] == [
        (n, s, pytest.approx(d)) for n, s, d in measured
    ]
    assert ("predicted step", "predicted step", 0.0, 1200.0) in slices


def test_transfers_have_tracks_by_peer_on_both_ends(events: list[dict[str, Any]]) -> None:
    process = {pid: name for (pid, _), name in names(events, "process_name").items()}
    tracks = {(process[pid], name): (pid, tid) for (pid, tid), name in names(events, "thread_name").items()}
    sent = tracks["predicted GPU:0", "send to GPU:1"]
    received = tracks["predicted GPU:1", "receive from GPU:0"]
    for track in (sent, received):
        of_track = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == track]
        assert [(e["name"], e["ts"], e["dur"], e["args"]["bytes"]) for e in of_track] == [
            ("conv2d", 100.0, 50.0, 4096), ("conv2d", 200.0, 50.0, 4096),
        ]  # fmt: skip
    assert ("predicted GPU:0", "all-reduce") in tracks


def test_slices_of_a_track_nest_or_follow_and_end_with_the_step(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        assert all(after >= end - 1e-6 for (_, end), (after, _) in pairwise(sorted(spans)))
    predicted = [end for (pid, _), spans in tracks.items() for _, end in spans if pid <= 3]
    assert max(predicted) == pytest.approx(1200.0)


def test_memory_is_a_counter(split_plan: PlanDocument) -> None:
    plan = replace(split_plan, memory=tuple(replace(use, over_time=(5, 7)) for use in split_plan.memory))
    written = json.loads(to_trace_events(plan))["traceEvents"]
    assert len(plan.memory) == 0 or [e["args"]["bytes"] for e in written if e["ph"] == "C"] == [5, 7] * len(plan.memory)
