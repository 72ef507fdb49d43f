"""Bind a plan to a traced step: a Keras model whose other steps are traced and placed by the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from partitioner.binding.execution import execution_of_plan
from partitioner.binding.traced_step import TracedStep, captured, compile_arguments
from partitioner.binding.transfer import rebase, transfer_placement
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.own_step import has_own_step, kinds_of_steps
from partitioner.emit.asynchronous.model import AsyncPlacedModel
from partitioner.emit.asynchronous.program import AsyncProgram
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.emit.keras.program import PlacedProgram
from partitioner.ir.execution import Execution
from partitioner.ir.plan import JitCompile, PlanDocument, Updates
from partitioner.ir.step import CapturedStep, StepKind


def place_traced(traced: TracedStep, plan: PlanDocument, model: keras.Model, devices: Mapping[str, str]) -> PlacedModel:
    """The placed model.

    Args:
        traced: The step of the plan, of this model.
        plan: The plan.
        model: The model, whose variables move.
        devices: The device that runs in place of each device of the plan.

    Raises:
        UsageError: The plan is for another model.
        ModelError: Replicas would need copies of variables that Keras does not own.
    """
    local = rebase(plan, traced.step.graph)
    own_steps = frozenset(kind for kind in StepKind if has_own_step(model, kind))
    is_async = plan.updates == Updates.ASYNC

    def arrange_all(step: CapturedStep) -> Execution:
        placement = transfer_placement(local, step.graph)
        on_devices = {name: devices[device] for name, device in placement.items()}
        return execution_of_plan(local, step, on_devices, devices, jit_compile=placed.asked_to_compile)

    def arrange(step: CapturedStep) -> Execution:
        return replace(arrange_all(step), replicas=()) if is_async else arrange_all(step)

    def capture(kind: StepKind, specs: tuple[Any, Any, Any]) -> CapturedStep:
        objective = None if kind is StepKind.PREDICT or kind in own_steps else training_objective(placed)
        return captured(model, kind, specs, batch_size=plan.model.batch_size, objective=objective)

    program = PlacedProgram(
        capture,
        arrange,
        model=model,
        devices={name: devices[name] for name in (plan.devices_of(0) if is_async else plan.used_devices)},
        optimizer=lambda: placed.optimizer,
        kinds=kinds_of_steps(model),
    )
    if is_async:
        asynchronous = AsyncProgram(
            program,
            arrange_all,
            devices=[[devices[name] for name in plan.devices_of(number)] for number in range(plan.num_replicas)],
            max_staleness=plan.max_staleness,
        )
        placed = AsyncPlacedModel(program, asynchronous, model=model, name=model.name, plan=plan)
    else:
        placed = PlacedModel(program, model=model, name=model.name, plan=plan, own_steps=own_steps)
    if traced.objective is not None:
        is_asked = plan.jit_compile is JitCompile.AUTO and model.jit_compile
        placed.compile(**compile_arguments(model, traced.objective), jit_compile=True if is_asked else "auto")
    elif plan.model.training:
        placed.follow()
    program.add(traced.step)
    return placed
