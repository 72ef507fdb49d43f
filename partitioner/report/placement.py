"""The picture of a model's plan: its devices, layers and tensors, with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, Stage
from partitioner.ir.units import format_bytes, format_bytes_of, format_seconds
from partitioner.report.dot import draw
from partitioner.report.first_replica import of_first_replica, replica_names, shows_first_only
from partitioner.report.microbatches import is_staged, passing
from partitioner.report.picture import Frame, Picture, escaped


def to_dot(plan: PlanDocument, **options: Any) -> str:
    """The DOT text of a plan; equal plans give equal text.

    Args:
        plan: The plan; only its layers, edges, stages and devices are read, never a model.
        options: Those of `partitioner.report.dot.draw`.

    Raises:
        ValueError: As `draw`.
    """
    plan = of_first_replica(plan) if shows_first_only(plan) else plan
    return draw(picture_of(plan), **options)


def picture_of(plan: PlanDocument) -> Picture:
    """The contents of the picture of a plan."""
    return Picture(
        heading=tuple(_heading(plan)),
        frames=tuple(_frame(plan, device) for device in _devices_in_use(plan)),
        layers=plan.layers,
        edges=plan.edges,
        returns=len(plan.stages) > len(plan.used_devices),
    )


def _devices_in_use(plan: PlanDocument) -> list[str]:
    order = {device.name: index for index, device in enumerate(plan.devices)}
    used = {*plan.used_devices, *(layer.device for layer in plan.layers if layer.device)}
    return sorted(used, key=lambda name: order.get(name, len(order)))


def _heading(plan: PlanDocument) -> list[str]:
    step = f"{plan.strategy}, estimated step {format_seconds(plan.predicted.step_seconds)}"
    lines = [f"<b>{escaped(plan.model.name)}</b>", f"{step}, batch size {plan.model.batch_size}"]
    if shows_first_only(plan):
        lines.append(f"replica 0 of {plan.num_replicas}, which are alike")
    if passed := passing(plan):
        lines.append(escaped(passed))
    return lines


def _frame(plan: PlanDocument, device: str) -> Frame:
    stages = [stage for stage in plan.stages if stage.device == device]
    title = f"<b>{escaped(short_name(device))}</b>"
    if stages and (len(stages) > 1 or is_staged(plan)):
        title += f", {_stage_names(stages)}"
    if stages and plan.num_replicas > 1:
        title += f", {replica_names(plan, stages[0])}"
    lines = []
    for info in plan.devices:
        if info.name == device:
            memory = format_bytes_of(plan.predicted.peak_bytes.get(device, 0), info.memory_bytes)
            lines += [f"{escaped(info.hardware)} ({info.origin})", f"peak memory {memory}"]
    lines.append(f"parameters {format_bytes(sum(stage.parameter_bytes for stage in stages))}")
    if any(stage.send_bytes for stage in stages):
        lines.append(f"sends {format_bytes(sum(stage.send_bytes for stage in stages))}")
    return Frame(device=device, title=title, facts=tuple(lines))


def _stage_names(stages: Sequence[Stage]) -> str:
    names = [f"{stage.index} (recompute)" if stage.recompute else f"{stage.index}" for stage in stages]
    together = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    return f"stage{'' if len(names) == 1 else 's'} {together}"
