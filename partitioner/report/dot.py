"""A picture as DOT: a frame per device, boxes in it, cut tensors in red with their bytes and links."""

from __future__ import annotations

import math

import pydot

from partitioner.ir.devices import short_name
from partitioner.ir.units import format_bytes
from partitioner.report.picture import UNPRINTABLE, Arrow, Box, Frame, Picture, escaped

# Colours that colour-blind people tell apart, in print too: M. Okabe and K. Ito, "Color Universal Design",
# 2008 (jfly.uni-koeln.de/color). Vermillion, the loudest, is kept for what crosses devices.
_CUT_COLOR = "#D55E00"
_DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_DARK_COLOR = "#0072B2"  # contrast of white on it 5.2:1, of black on every other color at least 6:1 (WCAG 2.1)
_FONT = "Helvetica"
_MAX_MEMBERS = 50
DIRECTIONS = ("TB", "LR", "BT", "RL")


def draw(picture: Picture, *, rankdir: str = "TB") -> str:
    """The DOT text of a picture; equal pictures give equal text.

    Args:
        picture: The picture.
        rankdir: Direction of the flow as in `keras.utils.plot_model`: `TB`, `LR`, `BT` or `RL`.

    Raises:
        ValueError: `rankdir` is unknown.
    """
    if rankdir not in DIRECTIONS:
        raise ValueError(f"rankdir is {rankdir!r}, expected TB, LR, BT or RL")
    graph = _empty_graph(picture, rankdir)
    colors = {frame.device: _DEVICE_COLORS[frame.number % len(_DEVICE_COLORS)] for frame in picture.frames}
    framed = picture.frames if picture.is_framed else ()
    clusters = {frame.device: _cluster(frame, index, colors[frame.device]) for index, frame in enumerate(framed)}
    for index, box in enumerate(picture.boxes):
        clusters.get(box.device, graph).add_node(_box_node(index, box, colors.get(box.device, "white")))
    for cluster in clusters.values():
        graph.add_subgraph(cluster)
    for number, arrow in enumerate(picture.arrows):
        _add_arrow(graph, number, arrow, picture)
    for number, source in enumerate(picture.outputs):
        graph.add_node(pydot.Node(f"output{number}", label="output", shape="ellipse", tooltip="output of the model"))
        graph.add_edge(pydot.Edge(f"n{source}", f"output{number}"))
    return graph.to_string()


def _empty_graph(picture: Picture, rankdir: str) -> pydot.Dot:
    lines = list(picture.heading)
    if len({box.device for box in picture.boxes if box.device} | {frame.device for frame in picture.frames}) > 1:
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


def _box_node(index: int, box: Box, color: str) -> pydot.Node:
    fill = "white" if box.is_pale else color
    ink = "white" if fill == _DARK_COLOR else "black"
    title = f"<b>{escaped(box.title)}</b>"
    if box.kind:
        title += f" ({escaped(box.kind)})"
    rows = [f'<td bgcolor="{fill}"><font color="{ink}">{title}</font></td>']
    if box.facts:
        rows.append(f'<td bgcolor="white">{"<br/>".join(box.facts)}</td>')
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    style = ' style="rounded"' if box.is_pale else ""
    table = f'<table border="0" cellborder="1" cellspacing="0" cellpadding="5"{style}>{body}</table>'
    left = len(box.members) - _MAX_MEMBERS
    members = box.members if left <= 0 else (*box.members[:_MAX_MEMBERS], f"and {left} more")
    return pydot.Node(f"n{index}", label=f"<{table}>", tooltip=_quoted("\n".join(members)))


def _add_arrow(graph: pydot.Dot, number: int, arrow: Arrow, picture: Picture) -> None:
    ends = f"n{arrow.source}", f"n{arrow.target}"
    source, target = picture.boxes[arrow.source].device, picture.boxes[arrow.target].device
    if source == target:
        graph.add_edge(pydot.Edge(*ends))
        return
    color, penwidth = _quoted(_CUT_COLOR), _thickness(arrow.size_bytes + arrow.gradient_bytes)
    lines = [f"<b>{format_bytes(arrow.size_bytes)}</b>"] if arrow.size_bytes else []
    if arrow.gradient_bytes:
        lines.append(f"<b>{format_bytes(arrow.gradient_bytes)} back</b>")
    if not lines:
        graph.add_edge(pydot.Edge(*ends, color=color, penwidth=penwidth))
        return
    if link := picture.links.get((source, target)):
        lines.append(escaped(link))
    # A node and not a label, as for a device's facts.
    table = f'<table border="0" cellpadding="3"><tr><td>{"<br/>".join(lines)}</td></tr></table>'
    graph.add_node(pydot.Node(f"cut{number}", label=f"<{table}>", fontsize="11", fontcolor=color))
    graph.add_edge(pydot.Edge(ends[0], f"cut{number}", color=color, penwidth=penwidth, dir="none"))
    graph.add_edge(pydot.Edge(f"cut{number}", ends[1], color=color, penwidth=penwidth))


def _thickness(size_bytes: int) -> str:
    """Width of an arrow in points: 1 up to a KiB, and another for each power of ten, up to 7."""
    return f"{1 + min(math.log10(max(size_bytes / 2**10, 1)), 6):.1f}"


def _quoted(text: str) -> str:
    """A DOT string; line ends become the escape that Graphviz breaks lines at."""
    clean = UNPRINTABLE.sub("\ufffd", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + clean.replace("\n", "\\n") + '"'
