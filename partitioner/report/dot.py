"""The picture of a plan as DOT: a frame per device, a box per layer, cut tensors in red with their bytes."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Sequence
from enum import StrEnum

import pydot

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import format_bytes, format_bytes_of, format_seconds
from partitioner.report.boxes import Arrow, Box, draw_boxes
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.microbatches import is_staged, passing

# Colours that colour-blind people tell apart, in print too: M. Okabe and K. Ito, "Color Universal Design",
# 2008 (jfly.uni-koeln.de/color). Vermillion, the loudest, is kept for what crosses devices.
_CUT_COLOR = "#D55E00"
_DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_DARK_COLOR = "#0072B2"  # white on it has a contrast of 5.2:1; on every other one black has 6:1 or more (WCAG 2.1)
_FONT = "Helvetica"
_MAX_SINGLE_BOXES = 40
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Detail(StrEnum):
    """How much of the model a picture shows: every layer, chains in one box, or as the length asks."""

    AUTO = "auto"
    LAYERS = "layers"
    CHAINS = "chains"


def to_dot(
    plan: PlanDocument, *, rankdir: str = "TB", show_shapes: bool = True, detail: Detail | str = Detail.AUTO
) -> str:
    """The DOT text of a plan; equal plans give equal text.

    Args:
        plan: What to draw; only its layers, edges, stages and devices are looked at, never a model.
        rankdir: Direction of the flow as in `keras.utils.plot_model`: `TB` or `LR`.
        show_shapes: Whether boxes show output shapes.
        detail: `layers`: a box per layer. `chains`: layers that follow each other on one device share a box.
            `auto`: chains for more than 40 layers.

    Raises:
        ValueError: `rankdir` or `detail` is unknown, two layers share a name, or an edge names an unknown
            layer.
    """
    if rankdir not in ("TB", "LR", "BT", "RL"):
        raise ValueError(f"rankdir is {rankdir!r}, expected TB, LR, BT or RL")
    detail = Detail(detail)
    plan = of_first_replica(plan) if shows_first_only(plan) else plan
    fold = detail is Detail.CHAINS or (detail is Detail.AUTO and len(plan.layers) > _MAX_SINGLE_BOXES)
    picture = draw_boxes(plan, fold=fold)
    graph = _empty_graph(plan, rankdir)
    devices = _devices_in_use(plan)
    colors = dict(zip(devices, itertools.cycle(_DEVICE_COLORS), strict=False))
    clusters = {device: _cluster(plan, device, index, colors[device]) for index, device in enumerate(devices)}
    for index, box in enumerate(picture.boxes):
        node = _box_node(index, box, colors.get(box.device, "white"), show_shapes)
        clusters.get(box.device, graph).add_node(node)
    for cluster in clusters.values():
        graph.add_subgraph(cluster)
    for arrow in picture.arrows:
        cut = picture.boxes[arrow.source].device != picture.boxes[arrow.target].device
        graph.add_edge(_arrow_edge(arrow, cut))
    for number, source in enumerate(picture.outputs):
        graph.add_node(pydot.Node(f"output{number}", label="output", shape="ellipse", tooltip="output of the model"))
        graph.add_edge(pydot.Edge(f"n{source}", f"output{number}"))
    return graph.to_string()


def _devices_in_use(plan: PlanDocument) -> list[str]:
    order = {device.name: index for index, device in enumerate(plan.devices)}
    used = {*plan.used_devices, *(layer.device for layer in plan.layers if layer.device)}
    return sorted(used, key=lambda name: order.get(name, len(order)))


def _empty_graph(plan: PlanDocument, rankdir: str) -> pydot.Dot:
    step = f"{plan.strategy}, estimated step {format_seconds(plan.predicted.step_seconds)}"
    step = f"{step}, batch size {plan.model.batch_size}"
    lines = [f"<b>{_text(plan.model.name)}</b>", step]
    if shows_first_only(plan):
        lines.append(f"replica 0 of {plan.num_replicas}, which are alike")
    if passed := passing(plan):
        lines.append(_text(passed))
    if len(plan.used_devices) > 1:
        legend = "red: crosses devices; a tensor that several boxes read is sent to their device once"
        lines.append(f'<font point-size="11">{legend}</font>')
    graph = pydot.Dot("placement", graph_type="digraph")
    title = f"<{'<br/>'.join(lines)}>"
    graph.set_graph_defaults(
        rankdir=rankdir,
        fontname=_FONT,
        fontsize="16",
        label=title,
        labelloc="t",
        nodesep="0.3",
        ranksep="0.35",
    )
    if len(plan.stages) > len(plan.used_devices):
        graph.set("newrank", "true")  # the flow comes back to a device: rank by flow, not device by device
    graph.set_node_defaults(fontname=_FONT, fontsize="12", shape="plain")
    graph.set_edge_defaults(fontname=_FONT, fontsize="11", color=_quoted("#444444"), arrowsize="0.7")
    return graph


def _cluster(plan: PlanDocument, device: str, index: int, color: str) -> pydot.Subgraph:
    name = short_name(device)
    stages = [stage for stage in plan.stages if stage.device == device]
    label = f"<b>{_text(name)}</b>"
    if stages and (len(stages) > 1 or is_staged(plan)):
        label += f", {_stage_names(stages)}"
    if stages and plan.num_replicas > 1:
        label += f", {replica_names(plan, stages[0])}"
    lines = []
    for info in plan.devices:
        if info.name == device:
            memory = format_bytes_of(plan.predicted.peak_bytes.get(device, 0), info.memory_bytes)
            lines += [f"{_text(info.hardware)} ({info.origin})", f"peak memory {memory}"]
    lines.append(f"parameters {format_bytes(sum(stage.parameter_bytes for stage in stages))}")
    if any(stage.send_bytes for stage in stages):
        lines.append(f"sends {format_bytes(sum(stage.send_bytes for stage in stages))}")
    cluster = pydot.Subgraph(
        f"cluster_device{index}",
        label=f"<{label}>",
        tooltip=_quoted(name),
        color=_quoted(color),
        style="rounded",
        penwidth="2",
        fontsize="16",
        labeljust="l",
        margin="14",
    )
    # A node and not part of the label: Graphviz draws arrows over a label but around a node.
    facts = "".join(f'{line}<br align="left"/>' for line in lines)
    cluster.add_node(pydot.Node(f"facts{index}", label=f"<{facts}>", tooltip=_quoted(name)))
    return cluster


def _stage_names(stages: Sequence[Stage]) -> str:
    names = [f"{stage.index} (recompute)" if stage.recompute else f"{stage.index}" for stage in stages]
    together = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    return f"stage{'' if len(names) == 1 else 's'} {together}"


def _box_node(index: int, box: Box, color: str, show_shapes: bool) -> pydot.Node:
    fill = "white" if box.is_input else color
    ink = "white" if fill == _DARK_COLOR else "black"
    folded = len(box.layers) > 1
    title = f"<b>{_text(box.title)}</b>"
    if box.classes and not folded:
        title += f" ({_text(box.classes)})"
    rows = [f'<td bgcolor="{fill}"><font color="{ink}">{title}</font></td>']
    facts = [_text(box.classes)] if folded and box.classes else []
    if show_shapes and box.output_shape:
        facts.append(f"output shape <b>{_text(box.output_shape)}</b>")
    if box.parameter_bytes:
        facts.append(f"parameters <b>{format_bytes(box.parameter_bytes)}</b>")
    if facts:
        rows.append(f'<td bgcolor="white">{"<br/>".join(facts)}</td>')
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    style = ' style="rounded"' if box.is_input else ""
    table = f'<table border="0" cellborder="1" cellspacing="0" cellpadding="5"{style}>{body}</table>'
    tooltip = "\n".join(layer.name for layer in box.layers)
    return pydot.Node(f"n{index}", label=f"<{table}>", tooltip=_quoted(tooltip))


def _arrow_edge(arrow: Arrow, cut: bool) -> pydot.Edge:
    ends = f"n{arrow.source}", f"n{arrow.target}"
    if not cut:
        return pydot.Edge(*ends)
    lines = [format_bytes(arrow.size_bytes)]
    if arrow.gradient_bytes:
        lines.append(f"{format_bytes(arrow.gradient_bytes)} back")
    label = "<br/>".join(f"<b>&#160;{line}&#160;</b>" for line in lines)  # the spaces keep it off the arrow
    color = _quoted(_CUT_COLOR)
    return pydot.Edge(*ends, label=f"<{label}>", color=color, fontcolor=color, penwidth="3")


def _text(text: str) -> str:
    """Escaped for an HTML label, where Graphviz still expands backslashes (`\\N` is the node's name)."""
    return html.escape(_UNPRINTABLE.sub("\ufffd", text)).replace("\\", "\\\\").replace("\n", " ")


def _quoted(text: str) -> str:
    """A DOT string; line ends become the escape that Graphviz breaks lines at."""
    clean = _UNPRINTABLE.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + clean.replace("\n", "\\n") + '"'
