"""The text report of a plan: sections of plain tables, from the verdict down to the files written."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import (
    format_bytes,
    format_bytes_of,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    plural,
)
from partitioner.report.basis import basis, device_rows, link_rows
from partitioner.report.boxes import layer_runs
from partitioner.report.checks import verification_lines
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.memory import PURPOSES, curves, headroom, largest_lines, purposes, reserved_line
from partitioner.report.microbatches import best_ways, idle_sentence, is_chosen, is_staged
from partitioner.report.timeline import Timeline, draw_timeline
from partitioner.report.verdict import headline, reasons, short_names
from partitioner.report.what_if import what_if_rows

_OF_FIRST = ", of replica 0 as of all"
_MAX_LISTED = 12
_MAX_TIMELINE_COLUMNS = 72
_MIN_TIMELINE_COLUMNS = 16
_FACT_ORIGINS = {
    "compiled": "as compiled",
    "option": "from the {flag} option",
    "assumed": "assumed; {flag} sets it",
}


def render(plan: PlanDocument, *, files: Sequence[str | Path] = (), width: int = 100, color: bool = False) -> str:
    """The report of a plan as text without trailing spaces; equal plans give equal text.

    Args:
        plan: What to tell of.
        files: Paths just written, listed at the end.
        width: Columns of the terminal; longer cells wrap.
        color: Whether to style the text with ANSI escapes.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        height=25,  # given with the width, so that the size of no terminal is asked for
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,  # names such as `[bold]` stay as they are
        emoji=False,
        highlight=False,
    )
    console.print(_opening(plan))
    for title, body in _sections(plan, files, width):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(Padding(body, (0, 0, 0, 2)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _opening(plan: PlanDocument) -> RenderableType:
    model = plan.model
    facts = [
        plural(model.num_ops, "op"),
        f"{format_count(model.num_parameters)} parameters",
        f"batch size {model.batch_size:,}",
        "training" if model.training else "inference",
        f"devices {short_names([device.name for device in plan.devices])}",
    ]
    return Group(Text(f"{model.name} ({model.source})", style="bold"), Text(f"  {', '.join(facts)}"))


def _sections(plan: PlanDocument, files: Sequence[str | Path], width: int) -> Iterable[tuple[str, RenderableType]]:
    yield "strategy", _lines([headline(plan), *reasons(plan)])
    shown, of_shown = (of_first_replica(plan), _OF_FIRST) if shows_first_only(plan) else (plan, "")
    yield f"stages (estimated{of_shown})", _stages(shown)
    yield "step time (estimated)", _baselines(plan)
    if is_staged(plan):
        if plan.considered:
            yield "microbatches (estimated)", _considered(plan)
        if (timeline := draw_timeline(plan, num_columns=_timeline_columns(plan, width))) is not None:
            yield f"timeline (estimated{_OF_FIRST if plan.num_replicas > 1 else ''})", _timeline(timeline)
    if plan.memory:
        yield f"memory at the peak (estimated{of_shown})", _memory(shown, num_columns=_timeline_columns(plan, width))
    yield "solver", _lines(_solver(plan))
    yield from _what_if(plan)
    yield "hardware", _hardware(plan)
    if plan.model.training and (plan.model.loss or plan.model.optimizer):
        yield "training", _lines(_training(plan))
    if plan.uncosted_ops:
        named = _shortened(plan.uncosted_ops)
        yield (
            "ops without a cost formula",
            _lines([f"{named}: their arithmetic is not in the estimates"], "yellow"),
        )
    yield "verification", _verification(plan)
    if plan.notes:
        yield "notes", _lines([f"- {note}" for note in plan.notes])
    if files:
        yield "files", _lines([str(path) for path in files])


def _what_if(plan: PlanDocument) -> Iterable[tuple[str, RenderableType]]:
    if plan.what_if:
        what = "largest peak" if plan.what_if[0].unit == "bytes" else "step"
        table = _table("what if", f">{what}", "gain")
        for row in what_if_rows(plan.what_if):
            table.add_row(*map(Text, row))
        yield "what if (estimated)", table


def _stages(plan: PlanDocument) -> RenderableType:
    shows_recompute = any(stage.recompute for stage in plan.stages)
    recompute = ["recompute"] if shows_recompute else []
    table = _table("stage", "device", "layers", ">ops", ">parameters", ">peak memory", ">compute", ">sends", *recompute)
    memory = {device.name: device.memory_bytes for device in plan.devices}
    order = [layer.name for layer in plan.layers if layer.class_name != "InputLayer"]
    for stage in plan.stages:
        table.add_row(
            f"{stage.index}" if plan.num_replicas == 1 else f"{stage.index}, {replica_names(plan, stage)}",
            short_name(stage.device),
            Text(_layers(stage, order)),
            f"{stage.num_ops:,}",
            format_bytes(stage.parameter_bytes),
            _of_memory(stage.peak_bytes, memory.get(stage.device)),
            format_seconds(stage.compute_seconds),
            format_bytes(stage.send_bytes),
            *(["yes" if stage.recompute else "no"] if shows_recompute else []),
        )
    if len(plan.stages) > len(plan.used_devices):
        return Group(table, Text("peak memory is that of the device, with all its stages"))
    return table


def _layers(stage: Stage, order: Sequence[str]) -> str:
    is_short = sum(map(len, stage.layers)) <= 32
    return layer_runs(stage.layers, order, max_runs=3, max_names=3 if is_short else 1)


def _of_memory(used_bytes: int, memory_bytes: int | None) -> Text:
    if memory_bytes is None:
        return Text(format_bytes(used_bytes))
    if used_bytes > memory_bytes:
        return Text(f"{format_bytes_of(used_bytes, memory_bytes)}, too much", style="red")
    return Text(format_bytes_of(used_bytes, memory_bytes))


def _baselines(plan: PlanDocument) -> RenderableType:
    step_seconds = plan.predicted.step_seconds
    table = _table("", ">step", "against this plan", "memory")
    peak_bytes = plan.predicted.peak_bytes
    fits = all(peak_bytes.get(device.name, 0) <= device.memory_bytes for device in plan.devices)
    table.add_row(Text("this plan", style="bold"), format_seconds(step_seconds), "", _fits(fits))
    for baseline in plan.baselines:
        ratio = format_ratio(baseline.step_seconds, step_seconds)
        table.add_row(Text(baseline.name), format_seconds(baseline.step_seconds), ratio, _fits(baseline.fits))
    facts = [f"latency of one input {format_seconds(plan.predicted.latency_seconds)}"]
    if len(plan.used_devices) > 1:
        facts.append(f"bottleneck stage {plan.predicted.bottleneck_stage}")
        facts.append(f"devices idle {format_percent(plan.predicted.bubble_fraction)} of the step")
    return Group(table, Text(f"simulated; {', '.join(facts)}"))


def _considered(plan: PlanDocument) -> RenderableType:
    table = _table(">stages", ">microbatches", "schedule", ">recomputed", ">step", ">largest peak", "memory", "")
    for way in best_ways(plan):
        table.add_row(
            f"{way.num_stages}",
            f"{way.num_microbatches}",
            Text(way.schedule),
            f"{way.num_recomputed}",
            format_seconds(way.step_seconds),
            format_bytes(way.largest_peak_bytes),
            _fits(way.fits),
            Text("this plan" if is_chosen(plan, way) else "", style="bold"),
        )
    sentence = idle_sentence(plan)
    return Group(table, Text(sentence)) if sentence else table


def _timeline_columns(plan: PlanDocument, width: int) -> int:
    longest = max(len(short_name(device.name)) for device in plan.devices)
    room = width - longest - 4  # the margin of the section, and two spaces behind the label
    return max(min(room, _MAX_TIMELINE_COLUMNS), _MIN_TIMELINE_COLUMNS)


def _timeline(timeline: Timeline) -> RenderableType:
    longest = max(len(device) for device, _ in timeline.rows)
    lines = []
    for device, row in timeline.rows:
        bars = Text(row)
        bars.highlight_regex("[0-9]+", "blue")
        bars.highlight_regex("[a-j]+", "magenta")
        lines.append(Text(f"{device:{longest}}  ").append_text(bars))
    end = f"{format_seconds(timeline.step_seconds):>{len(timeline.rows[0][1]) - 1}}"
    return Group(*lines, Text(f"{'':{longest}}  0{end}"), Text(timeline.legend))


def _memory(plan: PlanDocument, *, num_columns: int) -> RenderableType:
    shown = [index for index in range(len(PURPOSES)) if any(purposes(memory)[index] for memory in plan.memory)]
    table = _table("device", ">peak", *(f">{PURPOSES[index]}" for index in shown), ">left")
    for memory in plan.memory:
        sizes = [format_bytes(purposes(memory)[index]) for index in shown]
        left = Text(headroom(memory), style="" if memory.headroom_bytes >= 0 else "red")
        table.add_row(short_name(memory.device), format_bytes(memory.peak_bytes), *sizes, left)
    lines = [*largest_lines(plan), reserved_line(plan)]
    rows = curves(plan, num_columns=num_columns)
    longest = max((len(device) for device, _ in rows), default=0)
    drawn = [f"{device:{longest}}  {row}" for device, row in rows]
    told = ["over the step; a full bar is the peak"] if rows else []
    return Group(table, _lines([*filter(None, lines), *told, *drawn]))


def _fits(fits: bool) -> Text:
    return Text("fits") if fits else Text("does not fit", style="red")


def _solver(plan: PlanDocument) -> list[str]:
    solver = plan.solver
    return [
        f"{solver.status} in {format_seconds(solver.seconds)}, seed {solver.seed}",
        f"lower bound {format_seconds(solver.lower_bound)}: under these costs no placement is faster; "
        f"gap {format_percent(solver.gap)}",
    ]


def _hardware(plan: PlanDocument) -> RenderableType:
    devices = _table("device", "hardware", "origin", ">memory to use", ">peak")
    for name, hardware, origin, memory, peak in device_rows(plan):
        devices.add_row(Text(name), Text(hardware), _origin(origin), memory, peak)
    if not plan.links:
        return Group(devices, Text(basis(plan)))
    links = _table("link", "origin", ">latency", ">bandwidth", "joins", ">sent in a step")
    for name, origin, *figures in link_rows(plan):
        links.add_row(Text(name), _origin(origin), *figures)
    return Group(devices, Text(), links, Text(basis(plan)))


def _origin(origin: str) -> Text:
    return Text(origin, style="yellow" if origin == "assumed" else "")


def _training(plan: PlanDocument) -> list[str]:
    model = plan.model
    facts = [("loss", model.loss, model.loss_origin), ("optimizer", model.optimizer, model.optimizer_origin)]
    lines = []
    for name, value, origin in facts:
        if value:
            told = _FACT_ORIGINS.get(origin, origin).format(flag=f"--{name}")
            lines.append(f"{name} {value}" + (f" ({told})" if told else ""))
    return lines


def _verification(plan: PlanDocument) -> RenderableType:
    if plan.verification is None:
        return _lines(["not run; --verify runs the placed model beside the unplaced one"])
    summary, rows = verification_lines(plan.verification, training=plan.model.training)
    table = _table("largest difference", ">absolute", ">relative")
    for row in rows:
        table.add_row(*map(Text, row))
    style = "red" if plan.verification.misplaced_ops else "green"
    return Group(Text(summary[0], style=style), *map(Text, summary[1:]), table)


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _lines(lines: Iterable[str], style: str = "") -> RenderableType:
    return Group(*(Text(line, style=style) for line in lines))


def _table(*columns: str) -> Table:
    """A table with a line under the head; `>` aligns a column to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="none")
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
    return table
