"""The report and the picture of a cost graph's plan: loads in the file's unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from partitioner.cost_graphs.document import CostGraphPlan, Piece
from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlannedEdge, PlannedLayer
from partitioner.ir.units import format_bytes, format_percent, format_seconds, plural
from partitioner.report.boxes import Detail, layer_boxes, outputs_of
from partitioner.report.dot import draw
from partitioner.report.layout import Section, as_text, drawn, lines, table
from partitioner.report.picture import Frame, Picture, escaped
from partitioner.report.verdict import short_names
from partitioner.report.what_if import what_if_rows
from partitioner.spelling import argument


def render(
    plan: CostGraphPlan,
    *,
    files: Sequence[str | Path] = (),
    verbose: bool = False,
    width: int = 100,
    color: bool = False,
) -> str:
    """The report of a plan as text; equal plans give equal text.

    Args:
        plan: The plan.
        files: Paths just written, listed at the end.
        verbose: Whether to list the nodes of each device.
        width: Columns of the terminal; longer cells wrap.
        color: Whether to style the text with ANSI escapes.
    """
    graph = plan.graph
    opening: list[RenderableType] = [
        Text(f"{graph.name} ({graph.source})", style="bold"),
        Text(
            f"  cost graph, {plural(graph.num_nodes, 'node')}, {plural(graph.num_values, 'value')}, "
            f"devices {short_names([device.name for device in plan.devices])}"
        ),
    ]
    return as_text([*opening, *map(drawn, _sections(plan, files, verbose))], width=width, color=color)


def to_dot(
    plan: CostGraphPlan,
    *,
    level: str = "layer",
    rankdir: str = "TB",
    stage: int | None = None,
    detail: Detail | str = Detail.AUTO,
) -> str:
    """The picture of a plan: a box per node, or for nodes that follow each other or repeat; options are those of
    `partitioner.report.placement.to_dot`.

    Raises:
        UsageError: `level` or `stage` asks for what only a model has.
        ValueError: `rankdir` or `detail` is unknown.
    """
    if level != "layer" or stage is not None:
        asked = argument("level", level) if stage is None else argument("stage", stage)
        raise UsageError(f"{asked}: the picture of a cost graph shows all nodes, it has no stages and no ops")
    boxes, arrows = layer_boxes(
        [
            PlannedLayer(name=node, class_name=plan.descriptions.get(node, ""), device=device)
            for node, device in plan.placement.items()
        ],
        [PlannedEdge(source=edge.source, target=edge.target, size_bytes=edge.size_bytes) for edge in plan.edges],
        detail=detail,
    )
    picture = Picture(
        heading=(f"<b>{escaped(plan.graph.name)}</b>", escaped(headline(plan))),
        frames=tuple(_frame(plan, piece, number) for number, piece in enumerate(plan.pieces)),
        boxes=boxes,
        arrows=arrows,
        outputs=outputs_of(boxes, arrows),
        links={},
    )
    return draw(picture, rankdir=rankdir)


def headline(plan: CostGraphPlan) -> str:
    """The first line: number of devices, whether in contiguous pieces, and the largest load."""
    kind = "contiguous pieces" if plan.contiguous else "free pieces"
    used = short_names([piece.device for piece in plan.pieces])
    return f"{kind} on {used}: largest load {_load(plan, plan.solver.objective)}"


def _sections(plan: CostGraphPlan, files: Sequence[str | Path], verbose: bool) -> Iterable[Section]:
    yield Section(title="placement", body=lines([headline(plan)]))
    loads = table("device", ">nodes", ">compute", ">transfers", ">load", ">of the largest", ">memory")
    for piece in plan.pieces:
        loads.add_row(*map(Text, _row(plan, piece)))
    yield Section(title="loads", body=loads)
    yield Section(title="solver", body=lines(_solver(plan)))
    if plan.what_if:
        what = "largest peak" if plan.what_if[0].unit == "bytes" else "largest load"
        gains = table("what if", f">{what}", "gain")
        for row in what_if_rows(plan.what_if):
            gains.add_row(*map(Text, row))
        yield Section(title="what if (estimated)", body=gains)
    if plan.notes:
        yield Section(title="notes", body=lines([f"- {note}" for note in plan.notes]))
    if verbose:
        yield Section(title="nodes", body=lines(_nodes(piece) for piece in plan.pieces))
    if files:
        yield Section(title="files", body=lines(map(str, files)))


def _row(plan: CostGraphPlan, piece: Piece) -> tuple[str, ...]:
    """Device, nodes, compute, transfers, load, share of the largest, memory."""
    limit = _limits(plan)[piece.device]
    largest = plan.solver.objective
    return (
        short_name(piece.device),
        f"{len(piece.nodes):,}",
        _load(plan, piece.compute),
        _load(plan, piece.transfer),
        _load(plan, piece.load),
        format_percent(piece.load / largest if largest else 1.0),
        format_bytes(piece.memory_bytes) + (f" of {format_bytes(limit)}" if limit else ""),
    )


def _solver(plan: CostGraphPlan) -> Iterable[str]:
    """Status, bound and gap, and the baselines beside the plan."""
    solver = plan.solver
    yield f"{solver.status} in {format_seconds(solver.seconds)}, seed {solver.seed}, method {solver.method}"
    yield (
        f"lower bound {_load(plan, solver.lower_bound)}: no allowed placement has a smaller largest load; "
        f"gap {format_percent(solver.gap)}"
    )
    for baseline in plan.baselines:
        yield f"{baseline.name}: {_load(plan, baseline.load)}{'' if baseline.fits else ', which is not allowed'}"


def _nodes(piece: Piece) -> str:
    return f"{short_name(piece.device)}: {', '.join(piece.nodes)}"


def _frame(plan: CostGraphPlan, piece: Piece, number: int) -> Frame:
    kinds = {device.name: device.kind for device in plan.devices}
    limit = _limits(plan)[piece.device]
    memory = format_bytes(piece.memory_bytes) + (f" of {format_bytes(limit)}" if limit else "")
    facts = [escaped(kinds[piece.device]), f"load {escaped(_load(plan, piece.load))}", f"memory {memory}"]
    if piece.send_bytes:
        facts.append(f"sends {format_bytes(piece.send_bytes)}")
    title = f"<b>{escaped(short_name(piece.device))}</b>"
    return Frame(device=piece.device, number=number, title=title, facts=tuple(facts))


def _limits(plan: CostGraphPlan) -> dict[str, int | None]:
    return {device.name: device.memory_bytes for device in plan.devices}


def _load(plan: CostGraphPlan, load: float) -> str:
    """`17.7147 ms`: six digits, in the file's unit."""
    return f"{load:.6g} {plan.graph.unit}"
