"""What XLA compiles of each stage of a plan, and why not the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from cost_models.gpu_products import CONVOLUTIONS
from partitioner.ir.compilation import compiled_devices
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import DeviceMemory, JitCompile, PlanDocument, Stage
from partitioner.ir.units import format_bytes
from partitioner.spelling import listed

_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_WORKSPACE_BYTES = 4 << 30
"""What an algorithm of cuDNN may need that XLA takes because it is fastest: of VGG16 on an H100, 4.3 GiB more were held
than predicted (batch 64, TensorFlow 2.21); of ResNet50 and MobileNetV2 -0.5 to 0.9."""


def with_compilation(
    plan: PlanDocument, choice: JitCompile, uncompiled: Mapping[str, str], graph: OpGraph
) -> PlanDocument:
    """The plan with what is compiled of its stages, and notes on checks that XLA leaves out and on memory it may take.

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
    notes = [f"XLA leaves out the checks of {listed(left_out)}"] if left_out else []
    convolving = {plan.placement[op.name] for op in graph.ops if op.type in CONVOLUTIONS and op.name not in uncompiled}
    tight = [memory for memory in plan.memory if memory.device in convolving & devices and _is_tight(memory)]
    if tight:
        left = ", ".join(f"{DeviceName.parse(m.device).short} has {format_bytes(m.headroom_bytes)} left" for m in tight)
        notes.append(
            f"convolutions that XLA compiles may take {format_bytes(_WORKSPACE_BYTES)} of workspace that is not "
            f"planned, and {left}: if a step runs out of memory, plan without XLA"
        )
    return replace(plan, jit_compile=choice, stages=tuple(map(stage_with, plan.stages)), notes=(*plan.notes, *notes))


def _is_tight(memory: DeviceMemory) -> bool:
    """Whether a GPU that the plan fills has little room for workspace."""
    return DeviceName.parse(memory.device).type == "GPU" and 0 <= memory.headroom_bytes < _WORKSPACE_BYTES
