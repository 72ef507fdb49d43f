"""The picture of a model's plan: its devices, and its stages, layers or ops, with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.planned_ops import MOST_OPS
from partitioner.ir.units import format_bytes, format_bytes_of, format_seconds, plural
from partitioner.report.boxes import Detail, layer_boxes, outputs_of
from partitioner.report.dot import draw
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.microbatches import is_staged, passing
from partitioner.report.op_boxes import op_boxes
from partitioner.report.picture import Arrow, Box, Frame, Picture, escaped
from partitioner.report.stage_boxes import only_stage, stage_boxes, stages_of_layers
from partitioner.spelling import argument


class Level(StrEnum):
    """What a box of the picture stands for."""

    STAGE = "stage"
    LAYER = "layer"
    OP = "op"


def to_dot(
    plan: PlanDocument,
    *,
    level: Level | str = Level.LAYER,
    rankdir: str = "TB",
    stage: int | None = None,
    show_shapes: bool = True,
    detail: Detail | str = Detail.AUTO,
) -> str:
    """The DOT text of a plan; equal plans give equal text.

    Args:
        plan: The plan, all that is read: never a model.
        level: What a box stands for: a `stage`, a `layer` or an `op`. Where there would be too many, those that follow
            each other or repeat share one.
        rankdir: Direction of the flow as in `keras.utils.plot_model`: `TB`, `LR`, `BT` or `RL`.
        stage: The stage to show alone, with what it sends to others and reads from them.
        show_shapes: Whether layers show their output shapes.
        detail: How much of the layers to show: `auto`, `layers` (all of them) or `chains`.

    Raises:
        UsageError: The plan has no such stage, or does not hold its op graph.
        ValueError: `level`, `rankdir` or `detail` is unknown, or the plan's layers and edges do not fit together.
    """
    level = Level(level)
    if stage is not None and stage not in {known.index for known in plan.stages}:
        stages = sorted({known.index for known in plan.stages})
        has = f"it has {plural(len(stages), 'stage')}"
        raise UsageError(f"the plan has no stage {stage}: {has}, numbered from 0", help=argument("stage", stages[-1]))
    note = _why_no_ops(plan) if level is Level.OP and not len(plan.ops) else ""
    level = Level.LAYER if note else level
    is_part = level is Level.OP or stage is not None or shows_first_only(plan)
    shown = of_first_replica(plan) if is_part else plan
    boxes, arrows = _contents(shown, level, show_shapes, detail, stage)
    if stage is not None:
        boxes, arrows = only_stage(shown, stage, boxes, arrows)
    returns = _returns(boxes, arrows) or len(shown.stages) > len(shown.used_devices)
    picture = Picture(
        heading=(*_heading(shown, is_part=is_part), *([escaped(note)] if note else [])),
        frames=tuple(
            _frame(shown, device, number, level)
            for number, device in enumerate(_devices(shown, boxes))
            if stage is None or any((box.device, box.stage) == (device, stage) for box in boxes)
        ),
        boxes=boxes,
        arrows=arrows,
        outputs=outputs_of(boxes, arrows) if level is Level.LAYER and stage is None else (),
        links=_links(shown),
        returns=returns,
        # Frames would pull the stages of a device together, against the flow; their titles name the device too.
        is_framed=level is not Level.STAGE or len(shown.stages) <= len(shown.used_devices),
    )
    return draw(picture, rankdir=rankdir)


def _contents(
    plan: PlanDocument, level: Level, show_shapes: bool, detail: Detail | str, stage: int | None
) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    if level is Level.STAGE:
        return stage_boxes(plan)
    if level is Level.OP:
        return op_boxes(plan, stage)
    stages = stages_of_layers(plan)
    return layer_boxes(plan.layers, plan.edges, detail=detail, show_shapes=show_shapes, stages=stages)


def _why_no_ops(plan: PlanDocument) -> str:
    if plan.model.num_ops > MOST_OPS:
        return f"a plan keeps the op graph of at most {MOST_OPS:,} ops, this has {plan.model.num_ops:,}: by layer"
    return "the plan is of an earlier version, which kept no op graph: by layer"


def _returns(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> bool:
    """Whether two devices send to each other."""
    pairs = {(boxes[arrow.source].device, boxes[arrow.target].device) for arrow in arrows}
    return any(source != target and (target, source) in pairs for source, target in pairs)


def _links(plan: PlanDocument) -> dict[tuple[str, str], str]:
    """The link of each pair of devices in use, where the plan says it."""
    used = set(plan.used_devices)
    pairs = {pair: link.name for link in plan.links for pair in link.pairs if used >= set(pair)}
    (only, *others) = [link for link in plan.links if link.num_pairs] or [None]
    if only is None or others:
        return pairs
    return {(source, target): only.name for source in used for target in used if source != target}


def _devices(plan: PlanDocument, boxes: Sequence[Box]) -> list[str]:
    """The devices in use, in the plan's order."""
    order = {device.name: index for index, device in enumerate(plan.devices)}
    used = {*plan.used_devices, *(box.device for box in boxes if box.device)}
    return sorted(used, key=lambda name: order.get(name, len(order)))


def _heading(plan: PlanDocument, *, is_part: bool) -> list[str]:
    step = f"{plan.strategy}, estimated step {format_seconds(plan.predicted.step_seconds)}"
    lines = [f"<b>{escaped(plan.model.name)}</b>", f"{step}, batch size {plan.model.batch_size}"]
    if is_part and plan.num_replicas > 1:
        lines.append(f"replica 0 of {plan.num_replicas}, which are alike")
    if passed := passing(plan):
        lines.append(escaped(passed))
    return lines


def _frame(plan: PlanDocument, device: str, number: int, level: Level) -> Frame:
    stages = [stage for stage in plan.stages if stage.device == device]
    title = f"<b>{escaped(short_name(device))}</b>"
    if level is not Level.STAGE and stages and (len(stages) > 1 or is_staged(plan)):
        title += f", {_stage_names(stages)}"
    if stages and plan.num_replicas > 1:
        title += f", {replica_names(plan, stages[0])}"
    lines = []
    for info in plan.devices:
        if info.name == device:
            memory = format_bytes_of(plan.predicted.peak_bytes.get(device, 0), info.memory_bytes)
            lines += [f"{escaped(info.hardware)} ({info.origin})", f"peak memory {memory}"]
    if level is not Level.STAGE:
        lines.append(f"parameters {format_bytes(sum(stage.parameter_bytes for stage in stages))}")
    if any(stage.send_bytes for stage in stages):
        lines.append(f"sends {format_bytes(sum(stage.send_bytes for stage in stages))}")
    return Frame(device=device, number=number, title=title, facts=tuple(lines))


def _stage_names(stages: Sequence[Stage]) -> str:
    names = [f"{stage.index} (recompute)" if stage.recompute else f"{stage.index}" for stage in stages]
    together = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    return f"stage{'' if len(names) == 1 else 's'} {together}"
