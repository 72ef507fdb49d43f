"""The page of a plan, made from plan.json alone: the template gets values that are ready to be written down."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import (
    format_bytes,
    format_bytes_of,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
)
from partitioner.report.assumptions import assumptions
from partitioner.report.basis import basis, device_rows, link_rows
from partitioner.report.bottleneck import bottleneck_sentences
from partitioner.report.checks import verification_lines
from partitioner.report.command import command_of
from partitioner.report.compilation import compilation_sentence
from partitioner.report.facts import gaps_in_words, solver_in_words
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.html.chart import (
    BAR,
    CURVE_HEIGHT,
    LABEL_WIDTH,
    ROW,
    WIDTH,
    measured_gantt,
    memory_curves,
    predicted_gantt,
)
from partitioner.report.images import draw_image
from partitioner.report.layout import Spell
from partitioner.report.memory import PURPOSES, headroom, purposes, reserved_line
from partitioner.report.microbatches import best_candidates, is_chosen
from partitioner.report.placement import to_dot
from partitioner.report.verdict import headline, is_single, reasons, short_names
from partitioner.report.what_if import what_if_rows
from partitioner.spelling import as_flags

Draw = Callable[[str, str], bytes]
"""Draws a DOT text as an image of a kind: `svg`."""

_MOST_OPEN_LAYERS, _MOST_DRAWN_OPS = 40, 300
"""Larger models open with a picture of stages. Ops of larger stages are not drawn, as that takes seconds for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure at the top of the page: what it is, its text, and what it means."""

    name: str
    text: str
    remark: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A stage as a row of the table, and what it opens into."""

    stage: Stage
    name: str
    device: str
    peak: str
    layers: tuple[str, ...]
    ops: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture of the placement: its title, the SVG element, and whether it is shown before it is asked for."""

    title: str
    svg: str
    is_open: bool


def to_html(plan: PlanDocument, *, spell: Spell = as_flags, draw: Draw = draw_image) -> str:
    """The page of a plan: HTML that needs no other file, no network and no script; equal plans give equal text.

    Args:
        plan: The plan.
        spell: How arguments are named: `as_python` or `as_flags`.
        draw: Draws the picture; where it cannot, the page says what to install.
    """
    shown = of_first_replica(plan) if shows_first_only(plan) else plan
    training = plan.model.training
    return _template().render(
        plan=plan,
        figures=_figures(plan),
        headline=headline(plan),
        devices=short_names([device.name for device in plan.devices]),
        reasons=[spell(reason) for reason in reasons(plan)],
        solver=solver_in_words(plan.solver),
        limits=bottleneck_sentences(plan),
        command=command_of(plan),
        stages=_stages(shown, draw),
        compilation=compilation_sentence(plan),
        first_only=shown is not plan,
        drawings=_drawings(plan, draw),
        predicted=predicted_gantt(plan),
        measured=measured_gantt(plan),
        curves=memory_curves(plan, shown.memory),
        purposes=PURPOSES,
        memory=[(short_name(use.device), purposes(use), use, headroom(use)) for use in shown.memory],
        reserved=reserved_line(plan),
        candidates=[(candidate, is_chosen(plan, candidate)) for candidate in best_candidates(plan)],
        device_rows=device_rows(plan),
        link_rows=link_rows(plan),
        assumptions=assumptions(plan, spell),
        basis=basis(plan),
        what_if=what_if_rows(plan.what_if),
        verification=verification_lines(plan.verification, training=training) if plan.verification else None,
        notes=[spell(note) for note in plan.notes],
        width=WIDTH,
        label_width=LABEL_WIDTH,
        row=ROW,
        bar=BAR,
        curve_height=CURVE_HEIGHT,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "seconds": format_seconds,
        "percent": format_percent,
        "count": format_count,
        "device": short_name,
        "ratio": format_ratio,
    }
    return environment.get_template("page.html")


def _figures(plan: PlanDocument) -> list[Figure]:
    predicted, solver = plan.predicted, plan.solver
    step = Figure(
        name="predicted step",
        text=format_seconds(predicted.step_seconds),
        remark=_against_one_device(plan),
        value=predicted.step_seconds,
    )
    bound = Figure(
        name="lower bound",
        text=format_seconds(solver.lower_bound),
        remark=f"no placement is faster under these costs; {gaps_in_words(solver)}",
        value=solver.lower_bound,
    )
    figures = [step, bound]
    limits = {device.name: device.memory_bytes for device in plan.devices}
    used = [name for name in predicted.peak_bytes if limits.get(name)]
    if used:
        fullest = max(used, key=lambda name: predicted.peak_bytes[name] / limits[name])
        peak = predicted.peak_bytes[fullest]
        remark = f"of {format_bytes(limits[fullest])} that {short_name(fullest)} may use, the fullest device"
        figures.append(Figure(name="largest peak", text=format_bytes(peak), remark=remark, value=peak))
    if len(plan.used_devices) > 1:
        idle = predicted.bubble_fraction
        remark = f"of the step of {len(plan.used_devices)} devices"
        figures.append(Figure(name="idle", text=format_percent(idle), remark=remark, value=idle))
    if plan.measured is not None:
        seconds = plan.measured.step_seconds
        remark = f"median of {plan.measured.num_steps} steps"
        if plan.measured.on_stand_ins:
            remark += "; other devices ran in place of those of the plan"
        figures.append(Figure(name="measured step", text=format_seconds(seconds), remark=remark, value=seconds))
    return figures


def _against_one_device(plan: PlanDocument) -> str:
    singles = [baseline for baseline in plan.baselines if is_single(baseline)]
    fitting = [baseline.step_seconds for baseline in singles if baseline.fits]
    if len(plan.used_devices) < 2 or not singles:
        return "on one device"
    if not fitting:
        return "does not fit on one device"
    ratio = format_ratio(plan.predicted.step_seconds, min(fitting))
    return f"{'as fast as' if ratio == 'same' else f'{ratio} than'} one device ({format_seconds(min(fitting))})"


def _stages(plan: PlanDocument, draw: Draw) -> list[StageRow]:
    limits = {device.name: device.memory_bytes for device in plan.devices}
    return [
        StageRow(
            stage=stage,
            name=f"{stage.index}" if plan.num_replicas == 1 else f"{stage.index}, {replica_names(plan, stage)}",
            device=short_name(stage.device),
            peak=format_bytes_of(stage.peak_bytes, limits.get(stage.device, 0)),
            layers=stage.layers,
            ops=_drawn(plan, draw, level="op", stage=stage.index) if _has_few_ops(plan, stage) else "",
        )
        for stage in plan.stages
    ]


def _has_few_ops(plan: PlanDocument, stage: Stage) -> bool:
    return bool(len(plan.ops)) and stage.num_ops <= _MOST_DRAWN_OPS and stage.replica == 0


def _drawings(plan: PlanDocument, draw: Draw) -> list[Drawing]:
    """The placement by layer, and where there are many layers before that by stage; none where nothing can draw."""
    is_small = len(plan.layers) <= _MOST_OPEN_LAYERS
    by_layer = Drawing(title="by layer", svg=_drawn(plan, draw, level="layer"), is_open=is_small)
    if not by_layer.svg or is_small:
        return [by_layer] if by_layer.svg else []
    return [Drawing(title="by stage", svg=_drawn(plan, draw, level="stage"), is_open=True), by_layer]


def _drawn(plan: PlanDocument, draw: Draw, *, level: str, stage: int | None = None) -> str:
    """A picture as an SVG element; empty where nothing can draw it."""
    try:
        svg = draw(to_dot(plan, level=level, stage=stage), "svg").decode()
    except UsageError:
        return ""
    return _embedded(svg, prefix=f"{level}{'' if stage is None else stage}-")


_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_LEGIBLE_SHARE = 0.6
"""Letters of a picture are not drawn smaller than this share of their size."""
_SIZE = re.compile(r'<svg width="([\d.]+)pt" height="([\d.]+)pt"')


def _embedded(svg: str, *, prefix: str) -> str:
    """An SVG file as an element of a page: without prologue and comments, its ids unique.

    It shrinks to the width of the page, but not below a legible share of its own.
    """
    element = _COMMENT.sub("", _PROLOGUE.sub("", svg))
    sized = _SIZE.sub(lambda match: _width(float(match[1])), element, count=1)
    return sized.replace(' id="', f' id="{prefix}')


def _width(points: float) -> str:
    return f'<svg width="{points:g}pt" style="min-width: {_LEGIBLE_SHARE * points:g}pt"'
