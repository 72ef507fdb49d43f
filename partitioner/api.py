"""The Python API: every pass composed in one place. Each arrow of the data flow is one call below."""

from __future__ import annotations

import math
import platform
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from cost_models.measured import MeasuredCosts
from cost_models.topology import Topology
from partitioner.binding.execution import execution_of_plan
from partitioner.binding.planned_step import (
    captured,
    compile_arguments,
    first_step,
    objective_fields,
    remember,
    step_of_plan,
)
from partitioner.binding.transfer import rebase, transfer_placement
from partitioner.capture.lower.batching import BatchSizes
from partitioner.capture.source.load import LoadedModel
from partitioner.capture.source.load import load_model as _load_model
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.signature import input_specs
from partitioner.constraints.match import requirements_of
from partitioner.emit.asynchronous.model import AsyncPlacedModel
from partitioner.emit.asynchronous.program import AsyncProgram
from partitioner.emit.cluster import runtime
from partitioner.emit.graph.function import emit_function, emit_stepwise
from partitioner.emit.graph.variables import refresh_optimizer
from partitioner.emit.keras.export import export_saved_model
from partitioner.emit.keras.load import load_placed
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.emit.keras.program import PlacedProgram
from partitioner.errors import UsageError
from partitioner.garbage import collected_later
from partitioner.hardware.resolve import chosen_topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import parse_devices
from partitioner.ir.execution import Execution
from partitioner.ir.plan import CostsInfo, ModelInfo, Objective, Origin, PlanDocument, Strategy, Updates, Verification
from partitioner.ir.step import CapturedStep, StepKind
from partitioner.measure.choose import (
    ANALYTIC,
    MEASURED,
    OnProgress,
    costs_for,
    measured_devices,
    notes_on_costs,
    with_measured_links,
)
from partitioner.measure.imported_costs import inferred_ops, refuse_other_ops
from partitioner.measure.store import write_costs
from partitioner.plan_view import Plan
from partitioner.planner.diagnose.explain import explained
from partitioner.planner.diagnose.shortfall import OutOfMemoryError
from partitioner.planner.diagnose.what_if import what_if as gains_of
from partitioner.planner.document.assemble import plan_fields
from partitioner.planner.document.async_updates import staleness_bound, with_async_updates
from partitioner.planner.document.links import link_infos
from partitioner.planner.layouts.candidates import candidates, sharing_candidates
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.replicas import replica_groups, replicated, sends_of_all
from partitioner.planner.layouts.strategies import best_strategy
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.pipeline.options import (
    allowed_counts,
    allowed_recompute,
    allowed_schedules,
    microbatch_notes,
    refuse_uncuttable,
    uncuttable,
)
from partitioner.stages.coupling import batch_coupling
from partitioner.stages.programs import StageCutter
from partitioner.verification import verify_placed

InputShape = Sequence[int] | Mapping[str, Sequence[int]] | None


_LEAST_SEARCH_SECONDS = 30.0
_SHARE_OF_TRACING_AND_SEARCH = 0.78
"""What tracing leaves the search of its time limit, and what both have of it: the plan must be told too."""

# The measured costs it was planned with, if any.
_last_costs: weakref.WeakKeyDictionary[Any, MeasuredCosts | None] = weakref.WeakKeyDictionary()


def set_up_devices(devices: str | Sequence[str], *, cluster: Any = None) -> dict[str, str]:
    """Make devices available in this process, before TensorFlow runs anything.

    Logical CPU devices are created, and a GPU that is not here is stood in for by one. For devices of other processes,
    `/job:worker/task:0/GPU:0`, it connects to the workers, which `python -m partitioner.worker` starts.

    Args:
        devices: Names, as a list or a comma list with ranges.
        cluster: Addresses of workers by job, `{"worker": ["host:2222"]}`, or a `tf.train.ClusterSpec`; by default those
            in the environment variable TF_CONFIG.

    Returns:
        The canonical name of the device that runs in place of each one.

    Raises:
        UsageError: A name is wrong, a worker is not known or does not answer, or TensorFlow has already started with
            too few logical CPU devices or without the workers.
    """
    return runtime.set_up_devices([name.canonical for name in parse_devices(devices)], cluster)


def load_model(source: str) -> LoadedModel:
    """Load `PATH[:NAME]` with its variables in host memory, so that a model larger than one GPU can be loaded.

    Raises:
        ModelError: There is no such file or no such model in it.
    """
    with tf.device("CPU:0"):
        return _load_model(source)


@collected_later()
def plan(
    model: keras.Model,
    *,
    devices: str | Sequence[str] | None = None,
    batch_size: int = 32,
    input_shape: InputShape = None,
    training: bool = True,
    strategy: str = "auto",
    replicas: int | str | Sequence[int] = "auto",
    updates: str = "sync",
    max_staleness: int | None = None,
    microbatches: int | str = "auto",
    schedule: str = "auto",
    recompute: str = "auto",
    objective: str = "throughput",
    hardware: str | None = None,
    link: str | None = None,
    topology: str | Path | Topology | None = None,
    pins: Mapping[str, str] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    colocate: Sequence[str] = (),
    memory_limit: str | float | Mapping[str, str | float] | None = None,
    costs: str | Path | MeasuredCosts = ANALYTIC,
    loss: str | None = None,
    optimizer: str | None = None,
    example_inputs: Any = None,
    example_targets: Any = None,
    time_limit: float = 60.0,
    seed: int = 0,
    source: str = "",
    what_if: bool = False,
    on_progress: OnProgress | None = None,
) -> Plan:
    """Find the best placement of a model's step.

    Args:
        model: A Keras model. Loss and optimizer are those it was compiled with, unless given.
        devices: `["GPU:0", "GPU:1"]` or `"GPU:0-1"`; they need not be present on this machine. Of a topology, all.
        batch_size: Rows of a batch.
        input_shape: Sizes without the batch, one tuple or one per input name, where the model does not say.
        training: Plan the training step (forward, loss, gradients, update), or inference.
        strategy: `auto`, `single`, `layer-split`, `mirrored` (a replica of the model on each device) or `mixed`
            (replicas of several devices each).
        replicas: How many copies of the model each train on a part of the batch. The devices are cut into as many runs
            of consecutive ones; `auto` takes one per device if `mirrored`, and chooses if the strategy is `auto` too.
            `(3, 1)`: three replicas, each with one of the first three devices, that all share the fourth. In general
            numbers of devices that do the same, each of which divides the largest.
        updates: `sync`: replicas train on parts of one batch and update together; `async`: each updates shared
            variables by its part as soon as it can.
        max_staleness: If `async`, how many updates of others may lie between a replica's reading the parameters and its
            own update; four per replica if not given.
        microbatches: Parts that a batch (of a replica) is cut into, so that devices work at the same time; or `auto`.
        schedule: `sequential`, `gpipe`, `1f1b` or `interleaved`: in which order stages work on microbatches; or `auto`.
        recompute: Whether stages rerun their forward ops in the backward pass rather than keep what they made: `none`,
            `all`, or `auto`, where memory asks for it.
        objective: `throughput`, `latency` or `memory`.
        hardware: Catalogue name of the devices, e.g. `a100-80gb`; found out or assumed otherwise.
        link: Catalogue name of the links between them, e.g. `nvlink3`.
        topology: In place of both: a host of the catalogue, `dgx-h100` or `64x dgx-h100`, or a TOML file.
        pins: Device by regular expression over layer paths or op names; of several replicas, for the first.
        forbid: Likewise the devices that what matches may not be on, in no replica.
        colocate: Likewise patterns; all that one of them matches shares a device (in each replica).
        memory_limit: What may be used of each device: `8GiB`, or a size by device.
        costs: `analytic`: seconds from FLOPs, bytes and the hardware's figures; `measured`: run the step's ops on the
            devices that are here; or the path or contents of a file that was written after measuring.
        loss: Name of a Keras loss, in place of the compiled one; mean squared error where there is neither.
        optimizer: Name of a Keras optimizer, in place of the compiled one; Adam where there is neither.
        example_inputs: A batch of inputs, to tell their shapes and dtypes.
        example_targets: A batch of targets, where the loss does not tell their shapes.
        time_limit: Seconds for tracing the model and the search, which then ends with the best found; the search has 30
            of them, or all if there are fewer. Measuring, and what `what_if` and refusals plan beside, have time of
            their own.
        seed: Of the solver; the same seed gives the same plan.
        source: Where the model came from, for the record.
        what_if: Whether to plan anew for one more device, twice the bandwidth of links, and 1 GiB more where it is
            tightest, and tell what each gains; that takes as long again for each.
        on_progress: While measuring, is told what is measured and the fraction done.

    Raises:
        UsageError: An argument is wrong.
        ModelError: The model cannot be traced.
        InfeasibleError: No placement fits into memory, or requirements contradict each other.
        TimeLimitError: None was found in time.
    """
    chosen = _choice(Strategy, strategy, "strategy")
    requirements = requirements_of(pins, forbid, colocate)
    goal = _choice(Objective, objective, "objective")
    how = _choice(Updates, updates, "updates")
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}, expected at least 1")
    if time_limit <= 0:
        raise UsageError(f"time_limit is {time_limit}, expected more than 0 seconds")
    titles = runtime.gpu_titles()
    _, machines, infos = chosen_topology(
        devices,
        topology=topology,
        hardware=hardware,
        link=link,
        memory_limit=memory_limit,
        present=titles,
    )
    groups = replica_groups(chosen, replicas, machines, batch_size=batch_size, microbatches=microbatches)
    staleness = staleness_bound(
        how,
        max_staleness,
        strategy=chosen,
        replicas=replicas,
        num_replicas=len(groups),
        devices=[infos[index].name for index in groups[0]],
        training=training,
    )
    trained = training_objective(model, loss=loss, optimizer=optimizer) if training else None
    x = input_specs(model, _input_shapes(input_shape), example_inputs)
    began = time.monotonic()
    step = first_step(model, x, example_targets, trained, batch_size)
    tracing_seconds = time.monotonic() - began
    counts = allowed_counts(step, microbatches)
    is_open = chosen is Strategy.AUTO and replicas == "auto"
    kinds = (candidates, sharing_candidates) if is_open and not uncuttable(step) else ()
    shapes = [groups for kind in kinds for groups in kind(machines, most_replicas=batch_size)]
    numbers = {len(groups), *map(len, shapes)}
    sizes = [batch_size, *sorted({math.ceil(batch_size / (n * count)) for n in numbers for count in counts})]
    known = costs_for(costs, step, machines, titles, sizes, on_progress)
    refresh_optimizer(trained.optimizer if trained else None)
    measured = measured_devices(known, machines, titles)
    machines = with_measured_links(machines, known)
    kernels = runtime.cpu_kernels()
    whole = cost_ops(step.graph, machines, measured, kernels)
    source_of_costs = str(costs) if isinstance(costs, (str, Path)) else MEASURED
    refuse_other_ops(source_of_costs, whole, measured)
    refuse_uncuttable(step, len(groups))
    graph = BatchSizes(step)

    def costed_on(rows: int, devices: Sequence[int]) -> CostedGraph:
        known = {place: measured[index] for place, index in enumerate(devices) if index in measured}
        return cost_ops(graph(rows), machines.subset(devices), known, kernels)

    plan_shape = LayoutPlanner(
        machines=machines,
        batch_size=batch_size,
        costed=costed_on,
        programs=StageCutter(step, results=step.results),
        counts=counts,
        schedules=allowed_schedules(schedule),
        recompute=allowed_recompute(recompute),
        objective=goal,
        requirements=requirements,
        time_limit_seconds=time_limit,
        seed=seed,
    )

    def decide(planner: LayoutPlanner, seconds: float | None = None) -> ParallelLayout:
        """What was asked for, with this planner's devices and requirements, and its time limit or so many seconds."""
        planner = planner.started(seconds)
        if is_open:
            return best_strategy(
                planner,
                microbatches=microbatches,
                coupling=batch_coupling(step.graph, replicas=True),
                is_cuttable=not uncuttable(step),
            )
        runs = replica_groups(chosen, replicas, planner.machines, batch_size=batch_size, microbatches=microbatches)
        return planner(chosen, runs)

    try:
        left = _SHARE_OF_TRACING_AND_SEARCH * time_limit - tracing_seconds
        best = decide(plan_shape, max(min(time_limit, _LEAST_SEARCH_SECONDS), left))
    except OutOfMemoryError as error:
        raise explained(error, plan_shape, decide, groups) from error
    gains = gains_of(plan_shape, decide, best) if what_if else ()
    groups, costed, found = best.groups, best.costed, best.found
    remember(model, step, trained)
    _last_costs[model] = known
    info = ModelInfo(
        source=source,
        name=model.name,
        fingerprint=step.graph.fingerprint,
        num_ops=len(step.graph.ops),
        num_parameters=model.count_params(),
        batch_size=batch_size,
        training=training,
        input_shapes={name: tuple(sizes) for name, sizes in _input_shapes(input_shape).items()},
        **(objective_fields(trained) if trained else {}),
    )
    infos = [replace(i, origin=Origin.MEASURED) if n in measured else i for n, i in enumerate(infos)]
    fields = plan_fields(costed, found, [infos[index] for index in groups[0]], requested=chosen, objective=goal)
    if len(infos) > len(groups[0]):
        fields = replicated(fields, found, infos, groups)
    if how is Updates.ASYNC:
        fields = with_async_updates(fields, staleness)
    fields["costs"] = CostsInfo(
        source=source_of_costs, measured_share=costed.measured_share, inferred_ops=inferred_ops(costed)
    )
    fields |= {"requirements": requirements, "what_if": gains}
    fields["links"] = link_infos(
        machines, sends_of_all(found, infos, groups), is_described=topology is not None, named=link
    )
    fields["notes"] += tuple(notes_on_costs(costs, known, measured, machines, titles))
    fields["notes"] += microbatch_notes(step, found.num_microbatches, microbatches, num_replicas=len(groups))
    return Plan(model=info, versions=_versions(), **fields)


def place(
    model: keras.Model, plan: PlanDocument, *, example_inputs: Any = None, example_targets: Any = None
) -> PlacedModel:
    """A Keras model that runs as planned: compile, fit, evaluate, predict and save work as usual.

    The placed model shares its variables with `model`; they move to their planned devices. It comes compiled with
    what the plan was made for. A GPU of the plan that is not here is stood in for by a logical CPU device.

    Args:
        model: The model that was planned, or one built alike.
        plan: From `plan`, or `Plan.load`.
        example_inputs: As for `plan`, where the model was not just planned in this process and cannot do without.
        example_targets: Likewise.

    Raises:
        UsageError: The plan is for another model, or the devices cannot be made available.
        ModelError: The model cannot be traced, or holds variables that Keras does not own.
    """
    devices = runtime.set_up_devices(sorted({*plan.placement.values(), *plan.used_devices}))
    step, objective = step_of_plan(model, plan, example_inputs=example_inputs, example_targets=example_targets)
    local = rebase(plan, step.graph)

    is_async = plan.updates == Updates.ASYNC

    def arrange_all(step: CapturedStep) -> Execution:
        placement = transfer_placement(local, step.graph)
        return execution_of_plan(local, step, {name: devices[device] for name, device in placement.items()}, devices)

    def arrange(step: CapturedStep) -> Execution:
        return replace(arrange_all(step), replicas=()) if is_async else arrange_all(step)

    def capture(kind: StepKind, specs: tuple[Any, Any, Any]) -> CapturedStep:
        needs_loss = kind is not StepKind.PREDICT
        return captured(
            model,
            kind,
            specs,
            batch_size=plan.model.batch_size,
            objective=training_objective(placed) if needs_loss else None,
        )

    program = PlacedProgram(
        capture,
        arrange,
        devices={name: devices[name] for name in (plan.devices_of(0) if is_async else plan.used_devices)},
        optimizer=lambda: placed.optimizer,
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
        placed = PlacedModel(program, model=model, name=model.name, plan=plan)
    if objective is not None:
        placed.compile(**compile_arguments(model, objective))
    program.add(step)
    return placed


def auto_place(model: keras.Model, **arguments: Any) -> PlacedModel:
    """`place(model, plan(model, ...))`; takes the arguments of `plan`, and `placed.plan` is what it found."""
    return place(model, plan(model, **arguments))


def verify(model: keras.Model, placed: PlacedModel, *, num_steps: int = 5, seed: int = 0) -> Verification:
    """Hold a placed model against the unplaced one.

    Compares outputs, loss, gradients and the weights after `num_steps` training steps, the copies of these in all
    replicas, and reads back the device of every executed op. Variables and optimizer are as before when it returns.

    Raises:
        UsageError: `placed` was not made from `model` in this process.
    """
    program = placed.program
    if placed.model is not model or not isinstance(program, PlacedProgram):
        raise UsageError("verify() needs the model that `placed` was made from", help="place(model, plan) first")
    kind, specs = program.signatures()[0]
    step = program.step(kind, specs)
    objective = training_objective(placed) if kind is StepKind.TRAIN else None
    return verify_placed(
        model,
        step,
        program.execution(step),
        emit_function,
        emit_stepwise,
        compute_loss=objective.compute_loss if objective else None,
        optimizer=objective.optimizer if objective else None,
        ran_on=program.devices,
        num_steps=num_steps,
        seed=seed,
        differing_copies=placed.differing_variables,
    )


def load(path: str | Path) -> PlacedModel:
    """The trainable model that `partition` or `export` wrote: DIR, or the `placed_model` in it.

    Raises:
        ModelError: There is no placed model at `path`.
        UsageError: This machine lacks a device it runs on.
    """
    path = Path(path)
    return load_placed(path / "placed_model" if (path / "placed_model").is_dir() else path)


def write_saved_model(placed: PlacedModel, path: str | Path) -> None:
    """Write the placed SavedModel with the planned device names, whichever devices stood in for them here."""
    export_saved_model(placed, path)


def save_costs(model: keras.Model, path: str | Path) -> bool:
    """Write the measured costs a model was last planned with, for `plan(..., costs=path)`; False if there are none."""
    known = _last_costs.get(model)
    if known is not None:
        write_costs(known, Path(path))
    return known is not None


def with_verification(plan: Plan, verification: Verification) -> Plan:
    """The plan with what its verification showed."""
    return replace(plan, verification=verification)


def _input_shapes(shape: InputShape) -> dict[str, tuple[int, ...]]:
    if shape is None:
        return {}
    if isinstance(shape, Mapping):
        return {name: tuple(sizes) for name, sizes in shape.items()}
    return {"": tuple(shape)}


def _choice(kind: Any, text: str, what: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(kind)
        raise UsageError(f"unknown {what} {text!r}", notes=[f"this version has: {known}"]) from error


def _versions() -> dict[str, str]:
    packages = ("partition", "tensorflow", "keras", "ortools", "networkx")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}
