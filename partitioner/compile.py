"""Stands in for the compiler's spine until it lands."""

from __future__ import annotations

from typing import Any

from partitioner import api
from partitioner.options import Request
from partitioner.plan_view import Plan


def compile_plan(
    model: Any, request: Request, *, example_inputs: Any = None, example_targets: Any = None, on_progress: Any = None
) -> Plan:
    """Plan as asked."""
    step, machine, how, asked = request.step, request.machine, request.parallelism, request.constraints
    plan = api.plan(
        model,
        devices=machine.devices,
        batch_size=request.batch_size,
        input_shape=step.input_shape,
        training=step.training,
        strategy=request.strategy,
        objective=request.search.objective,
        replicas=request.replicas,
        updates="async" if how.asynchronous else "sync",
        max_staleness=how.asynchronous.max_staleness if how.asynchronous else None,
        microbatches=request.microbatches,
        schedule=how.schedule,
        recompute=how.recompute,
        hardware=machine.hardware,
        link=machine.link,
        topology=machine.topology,
        pins=asked.pins,
        forbid=asked.forbid,
        colocate=asked.colocate,
        memory_limit=machine.memory_limit,
        costs=request.costs,
        loss=step.loss,
        optimizer=step.optimizer,
        example_inputs=example_inputs,
        example_targets=example_targets,
        time_limit=request.search.time_limit,
        seed=request.search.seed,
        source=step.source,
        what_if=request.search.what_if,
        on_progress=on_progress,
    )
    object.__setattr__(plan, "measured_costs", api._last_costs.get(model))
    return plan
