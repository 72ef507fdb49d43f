"""The stages of a plan as a table: a row for each stage, or in the verbose report for each stage of each replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.ir.devices import short_name, short_ranges
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import format_bytes, format_bytes_of, format_seconds
from partitioner.report.boxes import layer_runs
from partitioner.report.compilation import compilation_sentence
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.layout import Section, name, table

_MAX_ROWS = 8


def stages_section(plan: PlanDocument) -> Section:
    """A row for each stage; replicas share a row, and of many stages those that compute longest are shown."""
    peers: dict[int, list[Stage]] = {}
    for stage in plan.stages:
        peers.setdefault(stage.index, []).append(stage)
    shows_recompute = any(stage.recompute for stage in plan.stages)
    columns = ["stage", "device", "layers", ">ops", ">parameters", ">compute", ">sends"]
    body = table(*columns, *(["recompute"] if shows_recompute else []), one_line=True)
    order = _order(plan)
    shown, rest = _longest(peers)
    for index in shown:
        same = peers[index]
        body.add_row(
            f"{index}",
            name(", ".join(short_ranges(dict.fromkeys(stage.device for stage in same))), one_line=True),
            name(_layers(same[0], order), one_line=True),
            _most(same, lambda stage: stage.num_ops, lambda count: f"{count:,.0f}"),
            _most(same, lambda stage: stage.parameter_bytes, format_bytes),
            _most(same, lambda stage: stage.compute_seconds, format_seconds),
            _most(same, lambda stage: stage.send_bytes, format_bytes),
            *([same[0].recompute_in_words] if shows_recompute else []),
        )
    title = "stages (estimated; figures are of each device)" if plan.num_replicas > 1 else "stages (estimated)"
    remarks = []
    if rest:
        longest = max(stage.compute_seconds for index in rest for stage in peers[index])
        remarks.append(f"{len(rest)} more stages, each with at most {format_seconds(longest)} of compute")
    if compiled := compilation_sentence(plan):
        remarks.append(compiled)
    lines = [Text(remark, no_wrap=True, overflow="ellipsis") for remark in remarks]
    return Section(title=title, body=Group(body, *lines))


def _longest(peers: dict[int, list[Stage]]) -> tuple[list[int], list[int]]:
    """The stages that have a row, and the others."""
    if len(peers) <= _MAX_ROWS:
        return sorted(peers), []
    by_time = sorted(peers, key=lambda index: (-max(stage.compute_seconds for stage in peers[index]), index))
    return sorted(by_time[: _MAX_ROWS - 1]), by_time[_MAX_ROWS - 1 :]


def _most(stages: Sequence[Stage], figure: Callable[[Stage], float], write: Callable[[float], str]) -> str:
    """A figure of stages that do the same on devices that may differ: `1.25 ms`, `up to 1.25 ms`."""
    figures = [figure(stage) for stage in stages]
    most = write(max(figures))
    return most if write(min(figures)) == most else f"up to {most}"


def all_stages_section(plan: PlanDocument) -> Section:
    """A row for each stage of each replica, with the peak of its device; of many replicas only the first is shown."""
    shown, of_shown = (of_first_replica(plan), ", of replica 0 as of all") if shows_first_only(plan) else (plan, "")
    shows_recompute = any(stage.recompute for stage in plan.stages)
    columns = ["stage", "device", "layers", ">ops", ">parameters", ">peak memory", ">compute", ">sends"]
    body = table(*columns, *(["recompute"] if shows_recompute else []))
    memory = {device.name: device.memory_bytes for device in plan.devices}
    order = _order(plan)
    for stage in shown.stages:
        body.add_row(
            f"{stage.index}" if plan.num_replicas == 1 else f"{stage.index}, {replica_names(plan, stage)}",
            short_name(stage.device),
            Text(_layers(stage, order)),
            f"{stage.num_ops:,}",
            format_bytes(stage.parameter_bytes),
            _of_memory(stage.peak_bytes, memory.get(stage.device)),
            format_seconds(stage.compute_seconds),
            format_bytes(stage.send_bytes),
            *([stage.recompute_in_words] if shows_recompute else []),
        )
    return Section(title=f"stages (estimated{of_shown})", body=_with_remark(shown, body))


def _with_remark(plan: PlanDocument, body: RenderableType) -> RenderableType:
    remarks = [compiled] if (compiled := compilation_sentence(plan)) else []
    if len(plan.stages) > len(plan.used_devices):
        remarks.append("peak memory is that of the device, with all its stages")
    return Group(body, *map(Text, remarks))


def _order(plan: PlanDocument) -> list[str]:
    return [layer.name for layer in plan.layers if layer.class_name != "InputLayer"]


def _layers(stage: Stage, order: Sequence[str]) -> str:
    is_short = _length(stage.layers) <= 32
    return layer_runs(stage.layers, order, max_runs=3, max_names=3 if is_short else 1)


def _length(names: Iterable[str]) -> int:
    return sum(map(len, names))


def _of_memory(used_bytes: int, memory_bytes: int | None) -> Text:
    if memory_bytes is None:
        return Text(format_bytes(used_bytes))
    if used_bytes > memory_bytes:
        return Text(f"{format_bytes_of(used_bytes, memory_bytes)}, too much", style="red")
    return Text(format_bytes_of(used_bytes, memory_bytes))
