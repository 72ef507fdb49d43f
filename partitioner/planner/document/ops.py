"""The op graph in the plan: the stage of every op, and what stages on different devices read of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.ir.plan import Stage, StageEdge
from partitioner.ir.planned_ops import MOST_OPS, CutOp, PlannedOps
from partitioner.planner.layouts.result import SearchResult

_LETTERS = {Phase.FORWARD: "f", Phase.BACKWARD: "b", Phase.UPDATE: "u"}
_Cuts = Mapping[tuple[str, int, bool], int]


def stages_of_ops(
    graph: OpGraph, result: SearchResult, stage_devices: Sequence[str], names: Sequence[str]
) -> dict[str, int]:
    """The stage of every op: the first whose programs have it.

    Ops that run once or update belong to the stage on their device that has their layer, else to the first one there.

    Args:
        graph: The op graph.
        result: The search result.
        stage_devices: Name of the device of each stage.
        names: Name of each device.
    """
    programs = result.programs
    stage_of: dict[str, int] = {}
    for program in programs.repeated if programs else ():
        for name in program.ops:
            stage_of.setdefault(name, program.stage)
    first = {device: index for index, device in reversed(list(enumerate(stage_devices)))}
    of_layer: dict[tuple[str, str], int] = {}
    for name, stage in stage_of.items():
        if layer := graph.op[name].layer:
            of_layer.setdefault((stage_devices[stage], layer), stage)
    for op in graph.ops:
        device = names[result.placement[op.name]]
        stage_of.setdefault(op.name, of_layer.get((device, op.layer), first.get(device, 0)))
    return stage_of


def planned_ops(
    graph: OpGraph, stages: Sequence[Stage], stage_of: Mapping[str, int], boxes: Mapping[str, int]
) -> tuple[PlannedOps, tuple[StageEdge, ...]]:
    """The op graph in columns, empty if it has too many ops, and the bytes from stage to stage.

    Args:
        graph: The op graph.
        stages: The stages of one replica.
        stage_of: The stage of every op.
        boxes: For ops that have one, the index of their box in the plan's layers.
    """
    cuts = _cuts(graph, [stage.device for stage in stages], stage_of)
    edges = _stage_edges(cuts, stage_of)
    if len(graph.ops) > MOST_OPS:
        return PlannedOps(), edges
    ops = sorted(graph.ops, key=lambda op: op.name)
    row = {op.name: index for index, op in enumerate(ops)}
    sizes: dict[tuple[int, int], int] = {}
    for (op, stage, _), size_bytes in cuts.items():
        sizes[row[op], stage] = sizes.get((row[op], stage), 0) + size_bytes
    columns = PlannedOps(
        types=tuple(op.type for op in ops),
        layers=tuple(boxes.get(op.name, -1) for op in ops),
        phases="".join(_LETTERS[op.phase] for op in ops),
        stages=tuple(stage_of[op.name] for op in ops),
        inputs=tuple(tuple(dict.fromkeys(row[graph.tensor[name].producer] for name in op.inputs)) for op in ops),
        cuts=tuple(CutOp(op=op, stage=stage, size_bytes=size) for (op, stage), size in sorted(sizes.items())),
    )
    return columns, edges


def _cuts(graph: OpGraph, devices: Sequence[str], stage_of: Mapping[str, int]) -> _Cuts:
    """Bytes by op, stage that reads its outputs, and whether backward ops make and read them.

    A tensor counts once for each stage that reads it. Constants are made where they are read.
    """
    counted: set[tuple[str, int]] = set()
    cuts: dict[tuple[str, int, bool], int] = {}
    for op in graph.ops:
        target = stage_of[op.name]
        for name in op.inputs:
            maker = graph.op[graph.tensor[name].producer]
            is_cut = devices[stage_of[maker.name]] != devices[target] and maker.type != "Const"
            if is_cut and (name, target) not in counted:
                counted.add((name, target))
                key = maker.name, target, maker.phase is op.phase is Phase.BACKWARD
                cuts[key] = cuts.get(key, 0) + graph.tensor[name].size_bytes
    return cuts


def _stage_edges(cuts: _Cuts, stage_of: Mapping[str, int]) -> tuple[StageEdge, ...]:
    forward = {(stage_of[op], reader) for op, reader, is_gradient in cuts if not is_gradient}
    totals: dict[tuple[int, int], list[int]] = {}
    for (op, reader, is_gradient), size_bytes in cuts.items():
        source = stage_of[op]
        goes_back = is_gradient and (reader, source) in forward
        ends = (reader, source) if goes_back else (source, reader)
        totals.setdefault(ends, [0, 0])[goes_back] += size_bytes
    return tuple(
        StageEdge(source=source, target=target, size_bytes=size, gradient_bytes=back)
        for (source, target), (size, back) in sorted(totals.items())
    )
