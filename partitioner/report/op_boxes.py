"""The boxes of ops: one for each, or for those that share one."""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import plural
from partitioner.report.boxes import counted
from partitioner.report.op_groups import OpGroup, layer_of, op_groups
from partitioner.report.picture import Arrow, Box, escaped, merged_arrows

_PHASES = {"f": "forward", "b": "backward", "u": "update"}


def op_boxes(plan: PlanDocument, stage: int | None) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    """Fewer than 100 boxes for the ops of one stage, or of all stages of a replica, and their arrows.

    Ops of other stages than `stage` are a pale box for each stage.
    """
    groups = op_groups(plan, stage)
    box_of: dict[int, int] = {row: index for index, group in enumerate(groups) for row in group.rows}
    others = sorted({where for row, where in enumerate(plan.ops.stages) if row not in box_of})
    number = {other: len(groups) + index for index, other in enumerate(others)}
    device = {known.index: known.device for known in plan.stages_of(0)}
    names = sorted(plan.placement)
    boxes = [_box(plan, group, names) for group in groups]
    boxes += [Box(title=f"stage {other}", device=device[other], stage=other, is_pale=True) for other in others]
    group_of = [box_of.get(row, number.get(where, -1)) for row, where in enumerate(plan.ops.stages)]
    return tuple(boxes), merged_arrows(_arrows(plan), group_of)


def _arrows(plan: PlanDocument) -> Iterator[Arrow]:
    ops = plan.ops
    size = {(cut.op, cut.stage): cut.size_bytes for cut in ops.cuts}
    for row, read in enumerate(ops.inputs):
        for source in read:
            # A constant is made where it is read.
            if ops.types[source] != "Const" or ops.stages[source] == ops.stages[row]:
                yield Arrow(source=source, target=row, size_bytes=size.get((source, ops.stages[row]), 0))


def _box(plan: PlanDocument, group: OpGroup, names: list[str]) -> Box:
    ops = plan.ops
    first = group.rows[0]
    phase = _PHASES[ops.phases[first]]
    layer = layer_of(plan, first)
    if len(group.rows) == 1:
        title, kind = ops.types[first], "" if phase == "forward" else phase
        facts = [escaped(layer)] if layer else []
    else:
        name = group.name or layer or "outside of layers"
        title, kind = name, phase
        facts = [plural(len(group.rows), "op"), escaped(counted(ops.types[row] for row in group.rows))]
    return Box(
        title=title,
        kind=kind,
        facts=tuple(facts),
        members=tuple(names[row] for row in group.rows),
        device=plan.placement[names[first]],
        stage=ops.stages[first],
    )
