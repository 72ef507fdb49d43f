"""Charts of a page as values: where each bar and each line goes. The template only writes them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partitioner.ir.devices import short_name
from partitioner.ir.plan import DeviceMemory, PlanDocument, PlannedAction
from partitioner.ir.units import format_bytes, format_seconds
from partitioner.report.actions import action_in_words
from partitioner.report.bubbles import bubbles
from partitioner.stages.actions import UPDATE, Action

WIDTH = 900.0
"""Width of the time axis, in units of the drawing."""
LABEL_WIDTH = 150.0
ROW, BAR = 34.0, 22.0
_CHARACTER = 7.0
_NARROWEST = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a Gantt chart: its place, its kind (as the style sheet calls it), the text on it, the text about it."""

    x: float
    width: float
    kind: str
    label: str
    title: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a Gantt chart: what it is of, and its bars."""

    name: str
    y: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """A Gantt chart: rows, the ticks of its axis, and the seconds that it spans."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    seconds: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory of a device over the step: points of the outline, and the line of the limit; None if far above."""

    name: str
    points: str
    limit_y: float | None
    peak_x: float
    peak_y: float
    peak: str
    limit: str
    title: str


def predicted_gantt(plan: PlanDocument) -> Gantt | None:
    """The predicted step: computation, idle times and transfers of each device; None where the plan has no timeline."""
    seconds, count = plan.predicted.step_seconds, plan.num_microbatches
    if not plan.timeline or seconds <= 0:
        return None
    rows: list[tuple[str, list[Bar]]] = []
    idle = bubbles(plan)
    for device in _devices(plan, plan.timeline):
        bars = [_action_bar(bar, seconds, count) for bar in plan.timeline if bar.device == device]
        bars += [
            _bar(b.start_seconds, b.end_seconds, seconds, "idle", b.cause, f"idle, {b.cause}: {b.reason}")
            for b in idle
            if b.device == device
        ]
        rows.append((short_name(device), sorted(bars, key=lambda bar: bar.start_seconds)))
    links: dict[str, list[Bar]] = {}
    for sent in plan.transfers:
        name = f"{short_name(sent.source)} → {short_name(sent.target)}" if sent.target else "all-reduce"
        what = sent.layer or ("gradients of all replicas" if not sent.op else sent.op)
        title = f"{format_bytes(sent.size_bytes)} of {what}"
        links.setdefault(name, []).append(_bar(sent.start_seconds, sent.end_seconds, seconds, "send", "", title))
    return _gantt([*rows, *sorted(links.items())], seconds)


def measured_gantt(plan: PlanDocument) -> Gantt | None:
    """The measured step, on a time axis of its own; None where none was measured."""
    measured = plan.measured
    if measured is None or not measured.timeline:
        return None
    seconds, count = max(bar.end_seconds for bar in measured.timeline), plan.num_microbatches
    rows = [
        (short_name(device), [_action_bar(bar, seconds, count) for bar in measured.timeline if bar.device == device])
        for device in _devices(plan, measured.timeline)
    ]
    return _gantt(rows, seconds)


def _gantt(rows: Sequence[tuple[str, Sequence[Bar]]], seconds: float) -> Gantt:
    return Gantt(
        rows=tuple(Row(name=name, y=index * ROW, bars=tuple(bars)) for index, (name, bars) in enumerate(rows)),
        ticks=tuple((WIDTH * part / 4, format_seconds(seconds * part / 4)) for part in range(5)),
        seconds=seconds,
        height=len(rows) * ROW,
    )


def _action_bar(bar: PlannedAction, seconds: float, num_microbatches: int) -> Bar:
    if bar.action == UPDATE:
        kind, label = "update", "update"
    else:
        action = Action.parse(bar.action)
        kind = {"F": "forward", "B": "backward", "W": "weights"}[action.kind]
        label = f"{action.kind}{action.microbatch}" if num_microbatches > 1 else kind
    about = action_in_words(bar.action, num_microbatches=num_microbatches)
    return _bar(bar.start_seconds, bar.end_seconds, seconds, kind, label, about)


def _bar(start: float, end: float, seconds: float, kind: str, label: str, about: str) -> Bar:
    x, width = WIDTH * start / seconds, max(WIDTH * (end - start) / seconds, _NARROWEST)
    return Bar(
        x=round(x, 2),
        width=round(width, 2),
        kind=kind,
        label=label if width > _CHARACTER * len(label) + 4 else "",
        title=f"{about}: {format_seconds(end - start)}, from {format_seconds(start)} to {format_seconds(end)}",
        start_seconds=start,
        end_seconds=end,
    )


def _devices(plan: PlanDocument, timeline: Iterable[PlannedAction]) -> list[str]:
    with_bars = {bar.device for bar in timeline}
    return [device.name for device in plan.devices if device.name in with_bars]


CURVE_HEIGHT = 90.0
_NEAR_SHARE, _FILLED_SHARE = 0.25, 0.8
"""A peak above this share of the limit is drawn below the limit; else it fills this share of the chart."""


def memory_curves(plan: PlanDocument, memory: Iterable[DeviceMemory]) -> tuple[MemoryCurve, ...]:
    """Memory over the step of some devices, each below its limit or above it."""
    limits = {device.name: device.memory_bytes for device in plan.devices}
    return tuple(_curve(plan, use, limits[use.device]) for use in memory if use.over_time)


def _curve(plan: PlanDocument, use: DeviceMemory, limit_bytes: int) -> MemoryCurve:
    near = use.peak_bytes > _NEAR_SHARE * limit_bytes
    top = max(limit_bytes, use.peak_bytes, 1) if near else use.peak_bytes / _FILLED_SHARE

    def y(size_bytes: float) -> float:
        return round(CURVE_HEIGHT * (1 - size_bytes / top), 2)

    step = WIDTH / len(use.over_time)
    outline = [f"0,{CURVE_HEIGHT}"]
    for index, size in enumerate(use.over_time):
        outline += [f"{round(index * step, 2)},{y(size)}", f"{round((index + 1) * step, 2)},{y(size)}"]
    share = use.peak_seconds / plan.predicted.step_seconds if plan.predicted.step_seconds else 0.0
    peak, limit = format_bytes(use.peak_bytes), format_bytes(limit_bytes)
    return MemoryCurve(
        name=short_name(use.device),
        points=" ".join([*outline, f"{WIDTH},{CURVE_HEIGHT}"]),
        limit_y=y(limit_bytes) if near else None,
        peak_x=round(WIDTH * min(share, 1.0), 2),
        peak_y=y(use.peak_bytes),
        peak=peak,
        limit=limit,
        title=f"{short_name(use.device)} holds at most {peak} of {limit}, at {format_seconds(use.peak_seconds)}",
    )
