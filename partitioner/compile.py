"""The compiler: from a model and a request to a plan, pass by pass. Read this first.

    trace   -> TracedStep        the step as TensorFlow's graph and as our op graph      capture/, binding/
    measure -> MeasuredCosts     costs of ops on the devices that are here, if asked     measure/
    pose    -> PlanningProblem   the op graph for every number of rows, with its costs   planner/model/
    plan    -> PlanDocument      a layout is chosen, and written as a document           planner/, plan_cache.py
    place   -> PlacedModel       the plan bound to the step and emitted                  binding/, emit/
    verify  -> Verification      the placed model compared with the unplaced model       verification/

Each pass is a function from value to value; the last two are called by `api.place` and `api.verify`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras

from cost_models.measured import MeasuredCosts, MeasuredDevice
from cost_models.topology import Topology
from partitioner.binding.traced_step import TracedStep, trace
from partitioner.capture.lower.batching import BatchSizes
from partitioner.emit.cluster.runtime import chosen_kernels, present_gpus
from partitioner.emit.graph.variables import refresh_optimizer
from partitioner.emit.xla.refusals import refused_ops
from partitioner.garbage import collected_later
from partitioner.gpu_kernels import notes_on_gpus
from partitioner.ir.compilation import compiled_devices
from partitioner.ir.plan import JitCompile, ModelInfo, Objective, PlanDocument, Strategy
from partitioner.ir.step import CapturedStep
from partitioner.measure.choose import MEASURED, costs_for, measured_devices, notes_on_costs, with_measured_links
from partitioner.measure.imported_costs import refuse_other_ops
from partitioner.options import Request
from partitioner.plan_cache import known_plan, plan_key, remember_plan
from partitioner.plan_view import Plan
from partitioner.planner.layouts.choose import LayoutRequest
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.model.step_costs import StepCosts
from partitioner.planner.pipeline.options import allowed_counts, allowed_recompute, refuse_uncuttable, uncuttable
from partitioner.planner.plan_step import (
    PlanningProblem,
    explain_infeasibility,
    plan_step,
)
from partitioner.solver_process.client import start_early
from partitioner.stages.coupling import batch_coupling

OnProgress = Callable[[str, float], object]

SEARCH = "search"
"""The part of planning that a plan made before has none of."""


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Costs of ops and links: from the catalogue, from a file, or measured now.

    Attributes:
        measured: The measured costs, if any.
        machines: The devices, with measured links if any.
        devices: The measured costs of each device, by index.
        source: Origin of the costs, for the record.
        notes: Notes about the costs for the reader of the plan.
    """

    measured: MeasuredCosts | None
    machines: Topology
    devices: Mapping[int, MeasuredDevice]
    source: str
    notes: tuple[str, ...]


@collected_later()
def compile_plan(
    model: keras.Model,
    request: Request,
    *,
    example_inputs: Any = None,
    example_targets: Any = None,
    on_progress: OnProgress | None = None,
) -> Plan:
    """Find the best placement of a model's step.

    Args:
        model: The model.
        request: The request.
        example_inputs: A batch of inputs, where neither the model nor the request says their shapes and dtypes.
        example_targets: A batch of targets, as `example_inputs`.
        on_progress: Called with what is being done and the fraction done: tracing, measuring ops, and the search with
            its best step so far and the bound of it. The part of the text before a colon stays the same.

    Raises:
        UsageError: The request contradicts the model or the machine.
        ModelError: The model cannot be traced.
        InfeasibleError: No placement fits into memory, or requirements contradict each other.
        TimeLimitError: No plan was found in time.
    """
    gpus = present_gpus()
    titles = {name: gpu.title for name, gpu in gpus.items()}
    request = replace(request, machine=request.machine.recognised(gpus)) if gpus else request
    tell = on_progress or (lambda _text, _fraction: None)
    seconds: dict[str, float] = {}
    tell("tracing", 0.0)
    with _timed(seconds, "tracing"):
        traced = _trace(model, request, example_inputs, example_targets)
    tell("tracing", 1.0)
    layout = _layout_request(request, traced.step)
    choice = _jit_compile(request, model, gpus_present=bool(gpus))
    with _timed(seconds, "measuring"):
        costs = _costs(request, traced, layout, titles, choice, on_progress)
    key = _key(request, traced, costs, choice) if request.search.cache else ""
    document = known_plan(key) if key else None
    if document is None:
        document = _planned(request, traced, layout, costs, choice, seconds, tell)
        if key:
            remember_plan(key, document)
    return Plan.of(
        document,
        request=request.given,
        versions=_versions(),
        traced=traced,
        measured_costs=costs.measured,
        planning_seconds=seconds,
    )


def _planned(
    request: Request,
    traced: TracedStep,
    layout: LayoutRequest,
    costs: _Costs,
    jit_compile: JitCompile,
    seconds: dict[str, float],
    tell: OnProgress,
) -> PlanDocument:
    """Pose and plan; `seconds` gets what each took."""
    if len(request.machine.names) > 1:  # else there is nothing to solve
        start_early()
    with _timed(seconds, "sizes of tensors"):
        problem = _problem(request, traced, layout, costs, seconds["tracing"], jit_compile)
    try:
        with _timed(seconds, SEARCH):
            return plan_step(problem, tell)
    except OutOfMemoryError as error:
        raise explain_infeasibility(error, problem) from error


def _key(request: Request, traced: TracedStep, costs: _Costs, jit_compile: JitCompile) -> str:
    """The key of the plan in the cache; examples of batches are left out, as they are in the traced step."""
    asked = replace(request, step=replace(request.step, example_inputs=None, example_targets=None))
    known = costs.source, costs.measured, costs.machines, costs.notes, chosen_kernels()
    return plan_key(traced.step, _versions(), _model_info(request, traced), asked, known, jit_compile)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[part] = time.monotonic() - began


def _trace(model: keras.Model, request: Request, example_inputs: Any, example_targets: Any) -> TracedStep:
    asked = request.step
    return trace(
        model,
        training=asked.training,
        loss=asked.loss,
        optimizer=asked.optimizer,
        batch_size=request.batch_size,
        input_shapes=asked.input_shapes,
        example_inputs=asked.example_inputs if example_inputs is None else example_inputs,
        example_targets=asked.example_targets if example_targets is None else example_targets,
    )


def _layout_request(request: Request, step: CapturedStep) -> LayoutRequest:
    """The requested layouts that the step allows.

    Raises:
        UsageError: It allows none of them.
    """
    counts = allowed_counts(step, request.microbatches, len(request.machine.names))
    refuse_uncuttable(step, len(request.groups))
    return LayoutRequest(
        strategy=Strategy(request.strategy),
        replicas=request.replicas,
        microbatches=request.microbatches,
        coupling=tuple(batch_coupling(step.graph, replicas=True)),
        is_cuttable=not uncuttable(step),
        counts=counts,
    )


def _costs(
    request: Request,
    traced: TracedStep,
    layout: LayoutRequest,
    titles: Mapping[str, str],
    jit_compile: JitCompile,
    on_progress: OnProgress | None,
) -> _Costs:
    machines = request.machine.resolved
    rows = layout.rows(machines, request.batch_size)
    compiled = compiled_devices(jit_compile, (placed.name for placed in machines.devices))
    measured = costs_for(request.costs, traced.step, machines, titles, rows, on_progress, compiled=compiled)
    refresh_optimizer(traced.objective.optimizer if traced.objective else None)
    devices = measured_devices(measured, machines, titles)
    machines = with_measured_links(machines, measured)
    return _Costs(
        measured=measured,
        machines=machines,
        devices=devices,
        source=str(request.costs) if isinstance(request.costs, (str, Path)) else MEASURED,
        notes=tuple(notes_on_costs(request.costs, measured, devices, machines, titles, jit_compile=bool(compiled))),
    )


def _problem(
    request: Request,
    traced: TracedStep,
    layout: LayoutRequest,
    costs: _Costs,
    tracing_seconds: float,
    jit_compile: JitCompile,
) -> PlanningProblem:
    """The input of planning."""
    parallelism, search, batch_size = request.parallelism, request.search, request.batch_size
    sizes = BatchSizes(traced.step)
    sizes(min(layout.rows(costs.machines, batch_size)))  # what all sizes share is inferred before the search begins
    compiled = compiled_devices(jit_compile, (name.canonical for name in request.machine.names))
    uncompiled = refused_ops(traced.step, compiled)
    step_costs = StepCosts(
        graph_of=sizes,
        machines=costs.machines,
        measured=costs.devices,
        kernels=chosen_kernels(),
        compiled=frozenset(op.name for op in traced.step.graph.ops if compiled and op.name not in uncompiled),
    )
    refuse_other_ops(costs.source, step_costs.on(batch_size, range(len(costs.machines.devices))), costs.devices)
    return PlanningProblem(
        model=_model_info(request, traced),
        step=traced.step,
        costs=step_costs,
        infos=request.machine.infos,
        layout=layout,
        schedules=parallelism.schedules,
        recompute=allowed_recompute(parallelism.recompute),
        objective=Objective(search.objective),
        requirements=request.constraints.requirements,
        max_staleness=request.max_staleness if parallelism.asynchronous else None,
        time_limit_seconds=search.time_limit,
        tracing_seconds=tracing_seconds,
        seed=search.seed,
        what_if=search.what_if,
        cost_source=costs.source,
        named_link=request.machine.link,
        is_described=request.machine.topology is not None,
        notes=(*costs.notes, *_notes_on_gpus(request, traced)),
        jit_compile=jit_compile,
        uncompiled=uncompiled,
    )


def _jit_compile(request: Request, model: keras.Model, *, gpus_present: bool) -> JitCompile:
    """Whether XLA compiles: as asked for, else as the model was compiled.

    Keras keeps no `auto`: on a machine without GPUs it is False, and False says nothing about other machines.
    """
    asked = request.step.asked_to_compile
    if asked is not JitCompile.AUTO or not getattr(model, "compiled", False):
        return asked
    if model.jit_compile:
        return JitCompile.ON
    return JitCompile.OFF if gpus_present else JitCompile.AUTO


def _notes_on_gpus(request: Request, traced: TracedStep) -> tuple[str, ...]:
    if all(name.type != "GPU" for name in request.machine.names):
        return ()
    return notes_on_gpus(traced.step.graph, bool(request.machine.gpus))


def _model_info(request: Request, traced: TracedStep) -> ModelInfo:
    graph = traced.step.graph
    return ModelInfo(
        source=request.step.source,
        name=traced.model.name,
        fingerprint=graph.fingerprint,
        num_ops=len(graph.ops),
        num_parameters=traced.num_parameters,
        batch_size=request.batch_size,
        training=request.step.training,
        input_shapes=request.step.input_shapes,
        **traced.objective_fields,
    )


def _versions() -> dict[str, str]:
    packages = ("partition", "tensorflow", "keras", "ortools", "networkx")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}
