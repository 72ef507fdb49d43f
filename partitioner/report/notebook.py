"""A plan in a notebook: its stages as a table, and the picture where it can be drawn."""

from __future__ import annotations

import re
from html import escape

from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import format_bytes, format_seconds
from partitioner.report.boxes import INPUT_CLASS, layer_runs
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.images import NoRendererError, draw_image
from partitioner.report.placement import to_dot

_COLUMNS = ("stage", "device", "layers", "ops", "parameters", "peak memory", "compute", "sends")


def as_html(plan: PlanDocument) -> str:
    """A table of the stages, and below it the picture of layers as inline SVG; without Graphviz the table alone."""
    shown = of_first_replica(plan) if shows_first_only(plan) else plan
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _row(shown, one))}</tr>" for one in shown.stages
    )
    step = f"{plan.strategy}, estimated step {format_seconds(plan.predicted.step_seconds)}"
    caption = f"<b>{escape(plan.model.name)}</b>: {step}, batch size {plan.model.batch_size}"
    if shows_first_only(plan):
        caption += f", replica 0 of {plan.num_replicas}, which are alike"
    return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>{_picture(plan)}"


def _picture(plan: PlanDocument) -> str:
    try:
        svg = draw_image(to_dot(plan), "svg").decode()
    except NoRendererError as error:
        return f"<p>The picture is left out: {escape(error.message)}; {escape(error.help or '')}</p>"
    except UsageError:
        return ""
    drawn = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
    return re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL)  # names the version of Graphviz, and nodes


def _row(plan: PlanDocument, stage: Stage) -> tuple[str, ...]:
    order = [layer.name for layer in plan.layers if layer.class_name != INPUT_CLASS]
    return (
        f"{stage.index}" if plan.num_replicas == 1 else f"{stage.index}, {replica_names(plan, stage)}",
        short_name(stage.device),
        layer_runs(stage.layers, order, max_runs=3, max_names=1),
        f"{stage.num_ops:,}",
        format_bytes(stage.parameter_bytes),
        format_bytes(stage.peak_bytes),
        format_seconds(stage.compute_seconds),
        format_bytes(stage.send_bytes),
    )
