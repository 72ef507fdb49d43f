"""How a step of a planned model runs: its placement with the plan's microbatches, schedule and recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partitioner.ir.compilation import compiled_devices
from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution
from partitioner.ir.plan import JitCompile, PlanDocument
from partitioner.ir.step import CapturedStep, StepKind
from partitioner.stages.programs import stage_programs
from partitioner.stages.schedules import ScheduleKind


def execution_of_plan(
    plan: PlanDocument,
    step: CapturedStep,
    placement: Mapping[str, str],
    devices: Mapping[str, str],
    *,
    jit_compile: JitCompile | None = None,
) -> Execution:
    """The execution of `step` under `plan`.

    Inference keeps the microbatches and replicas, forwards only. Evaluation whose loss cannot be computed in parts runs
    as a whole on the first replica.

    Args:
        plan: The plan, made for a step of the same model.
        step: The step to run.
        placement: Device of each of its ops, in this process.
        devices: The device that runs in place of each planned device.
        jit_compile: Whether XLA compiles, in place of the plan's choice.
    """
    choice = plan.jit_compile if jit_compile is None else jit_compile
    if step.kind is StepKind.TRAIN:
        count, schedule = plan.num_microbatches, plan.schedule
        recompute = frozenset(stage.index for stage in plan.stages_of(0) if stage.recompute)
        rerun = {stage.index: frozenset(plan.rerun) for stage in plan.stages_of(0) if stage.selective}
        if not step.graph.op.keys() >= set(plan.rerun):
            rerun = {}  # ops have other names here: all of these stages run again, which takes no more memory
    else:
        count, recompute, rerun = 1 if step.uncuttable else plan.num_microbatches, frozenset(), {}
        schedule = (ScheduleKind.GPIPE if count > 1 else ScheduleKind.SEQUENTIAL).value
    execution = Execution(
        placement=placement,
        stage_devices=tuple(devices[name] for name in plan.devices_of(0)),
        num_microbatches=count,
        schedule=schedule,
        recompute=recompute,
        rerun=rerun,
        replicas=tuple(_peers(plan, replica, devices) for replica in range(1, plan.num_replicas)),
        alone=bool(step.uncuttable) and step.kind is not StepKind.TRAIN,
        hosts={
            devices[name]: device.host.canonical
            for name in plan.used_devices
            if (device := DeviceName.parse(name)).type == "GPU"
        },
        compiled=compiled_devices(choice, (devices[name] for name in plan.used_devices)),
        delays_gradients=plan.delays_gradients,
    )
    if not execution.is_staged:
        return execution
    programs = stage_programs(step, execution, results=tuple(step.outputs))
    return replace(execution, placement={**placement, **programs.relocated})


def _peers(plan: PlanDocument, replica: int, devices: Mapping[str, str]) -> dict[str, str]:
    """The device of a replica by the device of the first replica, in this process."""
    pairs = zip(plan.devices_of(0), plan.devices_of(replica), strict=True)
    return {devices[first]: devices[peer] for first, peer in pairs}
