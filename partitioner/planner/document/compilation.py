"""What XLA compiles of each stage of a plan, and why not the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from partitioner.ir.compilation import compiled_devices
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import JitCompile, PlanDocument, Stage
from partitioner.spelling import listed

_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})


def with_compilation(
    plan: PlanDocument, choice: JitCompile, uncompiled: Mapping[str, str], graph: OpGraph
) -> PlanDocument:
    """The plan with what is compiled of its stages, and a note on checks that XLA leaves out.

    Args:
        plan: The plan.
        choice: Whether XLA compiles.
        uncompiled: Of ops that it cannot compile, why.
        graph: The op graph of the plan.
    """
    devices = compiled_devices(choice, plan.used_devices)

    def stage_with(stage: Stage) -> Stage:
        if stage.device not in devices:
            return stage
        peer = plan.stages_of(0)[stage.index].device
        reasons = Counter(why for name, why in uncompiled.items() if plan.placement[name] == peer)
        return replace(stage, compiled=True, uncompiled=dict(sorted(reasons.items())))

    left_out = [op.title for op in graph.ops if op.type in _CHECKS and op.name not in uncompiled and devices]
    notes = (*plan.notes, f"XLA leaves out the checks of {listed(left_out)}") if left_out else plan.notes
    return replace(plan, jit_compile=choice, stages=tuple(map(stage_with, plan.stages)), notes=notes)
