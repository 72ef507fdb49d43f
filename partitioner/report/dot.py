"""A picture as DOT: a frame per device, a box per layer, cut tensors in red with their bytes."""

from __future__ import annotations

import itertools
from enum import StrEnum

import pydot

from partitioner.ir.devices import short_name
from partitioner.ir.units import format_bytes
from partitioner.report.boxes import Arrow, Box, draw_boxes
from partitioner.report.picture import UNPRINTABLE, Frame, Picture, escaped

# Colours that colour-blind people tell apart, in print too: M. Okabe and K. Ito, "Color Universal Design",
# 2008 (jfly.uni-koeln.de/color). Vermillion, the loudest, is kept for what crosses devices.
_CUT_COLOR = "#D55E00"
_DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_DARK_COLOR = "#0072B2"  # contrast of white on it 5.2:1, of black on every other color at least 6:1 (WCAG 2.1)
_FONT = "Helvetica"
_MAX_SINGLE_BOXES = 40


class Detail(StrEnum):
    """How much of the model a picture shows: every layer, chains in one box, or chains where there are many layers."""

    AUTO = "auto"
    LAYERS = "layers"
    CHAINS = "chains"


def draw(picture: Picture, *, rankdir: str = "TB", show_shapes: bool = True, detail: Detail | str = Detail.AUTO) -> str:
    """The DOT text of a picture; equal pictures give equal text.

    Args:
        picture: The picture.
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
    fold = detail is Detail.CHAINS or (detail is Detail.AUTO and len(picture.layers) > _MAX_SINGLE_BOXES)
    drawn = draw_boxes(picture.layers, picture.edges, fold=fold)
    graph = _empty_graph(picture, rankdir)
    colors = dict(zip((frame.device for frame in picture.frames), itertools.cycle(_DEVICE_COLORS), strict=False))
    clusters = {
        frame.device: _cluster(frame, index, colors[frame.device]) for index, frame in enumerate(picture.frames)
    }
    for index, box in enumerate(drawn.boxes):
        node = _box_node(index, box, colors.get(box.device, "white"), show_shapes)
        clusters.get(box.device, graph).add_node(node)
    for cluster in clusters.values():
        graph.add_subgraph(cluster)
    for arrow in drawn.arrows:
        cut = drawn.boxes[arrow.source].device != drawn.boxes[arrow.target].device
        graph.add_edge(_arrow_edge(arrow, cut))
    for number, source in enumerate(drawn.outputs):
        graph.add_node(pydot.Node(f"output{number}", label="output", shape="ellipse", tooltip="output of the model"))
        graph.add_edge(pydot.Edge(f"n{source}", f"output{number}"))
    return graph.to_string()


def _empty_graph(picture: Picture, rankdir: str) -> pydot.Dot:
    lines = list(picture.heading)
    if len(picture.frames) > 1:
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
    if picture.returns:
        graph.set("newrank", "true")  # the flow comes back to a device: rank by flow, not device by device
    graph.set_node_defaults(fontname=_FONT, fontsize="12", shape="plain")
    graph.set_edge_defaults(fontname=_FONT, fontsize="11", color=_quoted("#444444"), arrowsize="0.7")
    return graph


def _cluster(frame: Frame, index: int, color: str) -> pydot.Subgraph:
    name = short_name(frame.device)
    cluster = pydot.Subgraph(
        f"cluster_device{index}",
        label=f"<{frame.title}>",
        tooltip=_quoted(name),
        color=_quoted(color),
        style="rounded",
        penwidth="2",
        fontsize="16",
        labeljust="l",
        margin="14",
    )
    # A node and not part of the label: Graphviz draws arrows over a label but around a node.
    facts = "".join(f'{line}<br align="left"/>' for line in frame.facts)
    cluster.add_node(pydot.Node(f"facts{index}", label=f"<{facts}>", tooltip=_quoted(name)))
    return cluster


def _box_node(index: int, box: Box, color: str, show_shapes: bool) -> pydot.Node:
    fill = "white" if box.is_input else color
    ink = "white" if fill == _DARK_COLOR else "black"
    folded = len(box.layers) > 1
    title = f"<b>{escaped(box.title)}</b>"
    if box.classes and not folded:
        title += f" ({escaped(box.classes)})"
    rows = [f'<td bgcolor="{fill}"><font color="{ink}">{title}</font></td>']
    facts = [escaped(box.classes)] if folded and box.classes else []
    if show_shapes and box.output_shape:
        facts.append(f"output shape <b>{escaped(box.output_shape)}</b>")
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


def _quoted(text: str) -> str:
    """A DOT string; line ends become the escape that Graphviz breaks lines at."""
    clean = UNPRINTABLE.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + clean.replace("\n", "\\n") + '"'
