"""The timeline as trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A process per device and a track for its computation, for what it sends to and receives from each other device, and for
sums of gradients; a counter for its memory. What was measured has processes of its own, with the same names.

Format: "Trace Event Format", Google, 2016 (complete events `X`, counters `C`, metadata `M`; times in microseconds).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from partitioner.ir.devices import short_name
from partitioner.ir.json import to_json
from partitioner.ir.plan import PlanDocument, PlannedAction, PlannedTransfer
from partitioner.report.actions import action_in_words

Event = dict[str, Any]
_COMPUTE, _ALL_REDUCE, _FIRST_LINK = 1, 2, 3
_STEP = "step"


def to_trace_events(plan: PlanDocument) -> str:
    """The JSON text of `timeline.json`; equal plans give equal text."""
    return to_json({"displayTimeUnit": "ms", "traceEvents": list(_events(plan)), "otherData": _about(plan)}, indent=1)


def _events(plan: PlanDocument) -> Iterator[Event]:
    numbers = itertools.count(1)
    yield from _step(next(numbers), "predicted", plan.predicted.step_seconds)
    devices = _devices(plan, (*plan.timeline, *plan.transfers))
    memory = {use.device: use.over_time for use in plan.memory}
    for device in devices:
        number = next(numbers)
        yield _named("process_name", number, 0, f"predicted {short_name(device)}")
        yield from _computes(number, plan.timeline, device, plan.num_microbatches)
        yield from _transfers(number, plan.transfers, device)
        part_seconds = plan.predicted.step_seconds / max(len(memory.get(device, ())), 1)
        for index, held_bytes in enumerate(memory.get(device, ())):
            yield {"ph": "C", "name": "memory", "pid": number, "tid": 0, "ts": _microseconds(index * part_seconds),
                   "args": {"bytes": held_bytes}}  # fmt: skip

    measured = plan.measured
    if measured is not None and measured.timeline:
        yield from _step(next(numbers), "measured", max(bar.end_seconds for bar in measured.timeline))
        for device in _devices(plan, measured.timeline):
            number = next(numbers)
            actual = measured.ran_on.get(device, device)
            where = "" if actual == device else f" on {short_name(actual)}"
            yield _named("process_name", number, 0, f"measured {short_name(device)}{where}")
            yield from _computes(number, measured.timeline, device, plan.num_microbatches)


def _step(number: int, what: str, step_seconds: float) -> Iterator[Event]:
    yield _named("process_name", number, 0, f"{what} {_STEP}")
    yield _slice(number, _COMPUTE, f"{what} {_STEP}", 0.0, step_seconds)


def _computes(number: int, timeline: Iterable[PlannedAction], device: str, num_microbatches: int) -> Iterator[Event]:
    bars = [bar for bar in timeline if bar.device == device]
    if bars:
        yield _named("thread_name", number, _COMPUTE, "compute")
    for bar in sorted(bars, key=lambda bar: bar.start_seconds):
        what = {"what": action_in_words(bar.action, num_microbatches=num_microbatches)}
        yield _slice(number, _COMPUTE, bar.action, bar.start_seconds, bar.end_seconds, **what)


def _transfers(number: int, transfers: Iterable[PlannedTransfer], device: str) -> Iterator[Event]:
    """What a device sends, receives and sums: a track for each other device and direction."""
    tracks: dict[str, list[PlannedTransfer]] = {}
    for sent in transfers:
        if sent.source == device:
            tracks.setdefault(f"send to {short_name(sent.target)}" if sent.target else "all-reduce", []).append(sent)
        elif sent.target == device:
            tracks.setdefault(f"receive from {short_name(sent.source)}", []).append(sent)
    links = itertools.count(_FIRST_LINK)
    for name, of_track in sorted(tracks.items()):
        track = next(links) if of_track[0].target else _ALL_REDUCE
        yield _named("thread_name", number, track, name)
        for sent in of_track:
            about = {"bytes": sent.size_bytes, "op": sent.op} if sent.op else {"bytes": sent.size_bytes}
            label = sent.layer or sent.op or "gradients"
            yield _slice(number, track, label, sent.start_seconds, sent.end_seconds, **about)


def _slice(number: int, track: int, name: str, start_seconds: float, end_seconds: float, **about: Any) -> Event:
    start, end = _microseconds(start_seconds), _microseconds(end_seconds)
    return {"ph": "X", "name": name, "pid": number, "tid": track, "ts": start, "dur": round(end - start, 3),
            "args": about}  # fmt: skip


def _named(what: str, number: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": number, "tid": track, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    """To a nanosecond: slices that follow each other still do."""
    return round(seconds * 1e6, 3)


def _devices(plan: PlanDocument, bars: Iterable[PlannedAction | PlannedTransfer]) -> list[str]:
    """Names of the devices of some bars, in the order of the plan."""
    named = {
        name for bar in bars for name in ((bar.device,) if isinstance(bar, PlannedAction) else (bar.source, bar.target))
    }
    order = [device.name for device in plan.devices]
    return [name for name in order if name in named]


def _about(plan: PlanDocument) -> dict[str, str]:
    about = {
        "model": plan.model.name,
        "strategy": f"{plan.strategy}, {plan.num_stages} stages, {plan.num_microbatches} microbatches",
        "schedule": plan.schedule,
    }
    if plan.num_replicas > 1:
        about["replicas"] = f"the first of {plan.num_replicas}"
    return about
