"""The boxes of stages, and what is left of a picture that shows a single stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import format_bytes, format_seconds, plural
from partitioner.report.boxes import INPUT_CLASS, layer_runs
from partitioner.report.first_replica import replica_names
from partitioner.report.picture import Arrow, Box, escaped, merged_arrows


def stage_boxes(plan: PlanDocument) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    """A box for each stage of each replica, and what stages send each other in a step."""
    number = {(stage.index, stage.replica): index for index, stage in enumerate(plan.stages)}
    arrows = []
    for replica in sorted({stage.replica for stage in plan.stages}):
        of = {stage.index: number[stage.index, stage.replica] for stage in plan.stages_of(replica)}
        arrows += [
            Arrow(
                source=of[edge.source],
                target=of[edge.target],
                size_bytes=edge.size_bytes,
                gradient_bytes=edge.gradient_bytes,
            )
            for edge in plan.stage_edges
        ]
    return tuple(_box(plan, stage) for stage in plan.stages), tuple(dict.fromkeys(arrows))


def only_stage(
    plan: PlanDocument, stage: int, boxes: Sequence[Box], arrows: Iterable[Arrow]
) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    """The boxes of one stage, and a pale box for each stage that sends to it or reads from it."""
    kept = [index for index, box in enumerate(boxes) if box.stage == stage]
    others = sorted({box.stage for box in boxes} - {stage})
    group = [0] * len(boxes)
    for index, box in enumerate(boxes):
        group[index] = kept.index(index) if box.stage == stage else len(kept) + others.index(box.stage)
    merged = [arrow for arrow in merged_arrows(arrows, group) if min(arrow.source, arrow.target) < len(kept)]
    reached = sorted({end for arrow in merged for end in (arrow.source, arrow.target) if end >= len(kept)})
    final = {old: new for new, old in enumerate([*range(len(kept)), *reached])}
    device = {known.index: known.device for known in reversed(plan.stages)}
    outside = [others[index - len(kept)] for index in reached]
    pale = [
        Box(title=f"stage {index}", kind=short_name(device[index]), device=device[index], stage=index, is_pale=True)
        if index in device
        else Box(title="no stage", kind="", device="", stage=index, is_pale=True)
        for index in outside
    ]
    return (*(boxes[index] for index in kept), *pale), tuple(
        Arrow(
            source=final[arrow.source],
            target=final[arrow.target],
            size_bytes=arrow.size_bytes,
            gradient_bytes=arrow.gradient_bytes,
        )
        for arrow in merged
    )


def stages_of_layers(plan: PlanDocument) -> dict[str, int]:
    """The stage of each layer: the first on its device that has it, else the first on its device for inputs, and the
    last for the loss."""
    stages = {}
    for layer in plan.layers:
        there = [stage for stage in plan.stages if stage.device == layer.device]
        having = [stage.index for stage in there if layer.name in stage.layers]
        every = [stage.index for stage in there]
        pick = max if _ends(layer.class_name) and not having else min
        stages[layer.name] = pick(having or every, default=-1)
    return {name: stage for name, stage in stages.items() if stage >= 0}


def _ends(class_name: str) -> bool:
    return class_name == "Loss"


def _box(plan: PlanDocument, stage: Stage) -> Box:
    order = [layer.name for layer in plan.layers if layer.class_name != INPUT_CLASS]
    facts = [
        escaped(layer_runs(stage.layers, order, max_runs=2, max_names=1) or "no layer of its own"),
        plural(stage.num_ops, "op"),
        f"compute <b>{format_seconds(stage.compute_seconds)}</b>",
        f"parameters <b>{format_bytes(stage.parameter_bytes)}</b>",
        f"peak memory of the device <b>{format_bytes(stage.peak_bytes)}</b>",
    ]
    if stage.recompute:
        facts.append(
            "recomputes what is cheap of its forward pass" if stage.selective else "recomputes its forward pass"
        )
    title = f"stage {stage.index}" + (f", {replica_names(plan, stage)}" if plan.num_replicas > 1 else "")
    return Box(
        title=title,
        kind=short_name(stage.device),
        facts=tuple(facts),
        members=stage.layers,
        device=stage.device,
        stage=stage.index,
    )
