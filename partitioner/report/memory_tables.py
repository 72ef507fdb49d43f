"""Memory in the report: peaks against limits in few rows, and the contents of devices at their peaks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from partitioner.ir.devices import short_name, short_ranges
from partitioner.ir.plan import DeviceInfo, PlanDocument
from partitioner.ir.units import format_bytes, format_percent
from partitioner.report.first_replica import of_first_replica, shows_first_only
from partitioner.report.layout import Section, lines, name, table
from partitioner.report.memory import PURPOSES, curves, headroom, largest_lines, purposes, reserved_line
from partitioner.report.timeline import timeline_columns

_MAX_ROWS = 4


def limits_section(plan: PlanDocument) -> Section:
    """Peak against limit; of many devices, those with the same limit share a row, the fullest devices first."""
    groups = [[info] for info in plan.devices]
    if len(groups) > _MAX_ROWS:
        alike: dict[tuple[object, ...], list[DeviceInfo]] = {}
        for info in plan.devices:
            alike.setdefault((info.memory_bytes, _is_used(plan, info)), []).append(info)
        groups = list(alike.values())
    rest: list[DeviceInfo] = []
    if len(groups) > _MAX_ROWS:
        groups.sort(key=lambda infos: -_share(plan, infos))
        rest = [info for infos in groups[_MAX_ROWS - 1 :] for info in infos]
        groups = groups[: _MAX_ROWS - 1]
    holds = {memory.device: memory for memory in plan.memory}
    body = table("device", ">peak", ">limit", ">used", "", *(["mostly"] if holds else []), one_line=True)
    for infos in groups:
        fullest = max(infos, key=lambda info: _peak(plan, info))
        mostly = _mostly(purposes(holds[fullest.name])) if fullest.name in holds else ""
        _add_row(body, plan, infos, *([name(mostly, one_line=True)] if holds else []))
    if rest:
        share = format_percent(_share(plan, rest))
        body.add_row(name(f"{len(rest)} more devices", one_line=True), "", "", f"up to {share}")
    return Section(title="memory (estimated peak against the limit)", body=body)


def _add_row(body: Table, plan: PlanDocument, infos: Sequence[DeviceInfo], *more: Text) -> None:
    peaks = [_peak(plan, info) for info in infos]
    limit, device = infos[0].memory_bytes, name(", ".join(short_ranges(info.name for info in infos)), one_line=True)
    if not _is_used(plan, infos[0]):
        body.add_row(device, "not used", format_bytes(limit), "", "", *more)
        return
    peak = f"{'up to ' if min(peaks) < max(peaks) else ''}{format_bytes(max(peaks))}"
    verdict = Text("too much", style="red") if max(peaks) > limit else Text("fits")
    body.add_row(device, peak, format_bytes(limit), format_percent(_share(plan, infos)), verdict, *more)


def _peak(plan: PlanDocument, info: DeviceInfo) -> int:
    return plan.predicted.peak_bytes.get(info.name, 0)


def _is_used(plan: PlanDocument, info: DeviceInfo) -> bool:
    return info.name in plan.used_devices or _peak(plan, info) > 0


def _share(plan: PlanDocument, infos: Sequence[DeviceInfo]) -> float:
    return max(_peak(plan, info) / max(info.memory_bytes, 1) for info in infos)


def _mostly(sizes: Sequence[int]) -> str:
    """The purpose that takes most of the peak: `activations 92.0 MiB`."""
    most = max(range(len(sizes)), key=lambda index: sizes[index])
    return f"{PURPOSES[most]} {format_bytes(sizes[most])}" if sizes[most] else ""


def all_memory_section(plan: PlanDocument, *, width: int) -> Section:
    """Bytes by purpose, the largest tensors and the curve of each device; of many replicas the first."""
    shown, of_shown = (of_first_replica(plan), ", of replica 0 as of all") if shows_first_only(plan) else (plan, "")
    columns = [index for index in range(len(PURPOSES)) if any(purposes(memory)[index] for memory in shown.memory)]
    body = table("device", ">peak", *(f">{PURPOSES[index]}" for index in columns), ">left")
    for memory in shown.memory:
        sizes = [format_bytes(purposes(memory)[index]) for index in columns]
        left = Text(headroom(memory), style="" if memory.headroom_bytes >= 0 else "red")
        body.add_row(short_name(memory.device), format_bytes(memory.peak_bytes), *sizes, left)
    rows = curves(shown, num_columns=timeline_columns(plan, width))
    longest = max((len(device) for device, _ in rows), default=0)
    bars = [f"{device:{longest}}  {row}" for device, row in rows]
    sentences = [*largest_lines(shown), reserved_line(shown), "over the step; a full bar is the peak" if rows else ""]
    title = f"memory at the peak (estimated{of_shown})"
    return Section(title=title, body=Group(body, lines([*filter(None, sentences), *bars])))
