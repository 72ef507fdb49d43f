"""The Python API of `import partitioner`: each function calls the compiler or one of its passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from cost_models.measured import MeasuredCosts
from cost_models.topology import Topology
from partitioner.binding.place import place_traced
from partitioner.binding.traced_step import traced_again
from partitioner.capture.source.build import built
from partitioner.capture.source.load import LoadedModel
from partitioner.capture.source.load import load_model as _load_model
from partitioner.capture.trace.objective import training_objective
from partitioner.compile import compile_plan
from partitioner.deferred_variables import deferred_values
from partitioner.emit.cluster import runtime
from partitioner.emit.graph.function import emit_function, emit_stepwise
from partitioner.emit.keras.export import export_saved_model
from partitioner.emit.keras.load import load_placed
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.emit.keras.program import PlacedProgram
from partitioner.errors import UsageError
from partitioner.ir.devices import parse_devices
from partitioner.ir.plan import MeasuredStep, PlanDocument, Verification
from partitioner.ir.step import StepKind
from partitioner.measure.placed_step import measure_placed_step
from partitioner.moves.planned import explain_with_moves
from partitioner.old_arguments import refusing_old_arguments
from partitioner.options import Constraints, Machine, Parallelism, Request, Search, Step
from partitioner.plan_view import Plan
from partitioner.report.explanation import Explanation
from partitioner.timing.contenders import Subject
from partitioner.timing.result import Benchmark
from partitioner.timing.take_turns import run_benchmark
from partitioner.verification import verify_placed
from partitioner.verification.compare import tolerance_of_copies
from partitioner.verification.data import random_batches
from partitioner.verification.host_reference import host_reference

# TensorFlow writes files itself, and says so when it cannot.
_ERRORS_OF_FILES = (
    *(tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError, tf.errors.PermissionDeniedError),
    *(tf.errors.NotFoundError, tf.errors.FailedPreconditionError, tf.errors.DataLossError, tf.errors.UnknownError),
)


def set_up_devices(devices: str | Sequence[str], *, cluster: Any = None) -> dict[str, str]:
    """Make devices available in this process, before TensorFlow runs anything.

    Logical CPU devices are created; they also replace missing GPUs. For devices of other processes,
    `/job:worker/task:0/GPU:0`, it connects to the workers, which `partition worker` starts.

    Args:
        devices: Names, as a list or a comma list with ranges.
        cluster: Addresses of workers by job, `{"worker": ["host:2222"]}`, or a `tf.train.ClusterSpec`; by default those
            in the environment variable TF_CONFIG.

    Returns:
        The canonical name of the device that runs in place of each named device.

    Raises:
        UsageError: A name is wrong, a worker is unknown or does not answer, or TensorFlow has already started with
            too few logical CPU devices or without the workers.
    """
    return runtime.set_up_devices([name.canonical for name in parse_devices(devices)], cluster)


def load_model(source: str, *, unsafe: bool = False) -> LoadedModel:
    """Load `PATH[:NAME]`; values of its variables are made where something first needs them, by default in host memory.

    Args:
        source: A `.py` file, whose code runs, or a `.keras` file.
        unsafe: Whether a `.keras` file may hold Python code (of Lambda layers), which then runs.

    Raises:
        ModelError: There is no such file or no such model in it, or it holds code and `unsafe` is false.
    """
    with tf.device("CPU:0"), deferred_values():
        return _load_model(source, unsafe=unsafe)


@refusing_old_arguments
def plan(
    model: keras.Model | Callable[[], keras.Model],
    devices: str | Sequence[str] | None = None,
    *,
    batch_size: int = 32,
    strategy: str = "auto",
    replicas: int | str | Sequence[int] = "auto",
    microbatches: int | str = "auto",
    hardware: str | None = None,
    link: str | None = None,
    topology: str | Path | Topology | None = None,
    memory_limit: str | float | Mapping[str, str | float] | None = None,
    costs: str | Path | MeasuredCosts = "analytic",
    objective: str = "throughput",
    time_limit: float | None = None,
    seed: int = 0,
    step: Step | None = None,
    parallelism: Parallelism | None = None,
    constraints: Constraints | None = None,
    what_if: bool = False,
    cache: bool = True,
    on_progress: Callable[[str, float], object] | None = None,
) -> Plan:
    """Find the best placement of a model's step.

    Args:
        model: A Keras model, or a function that builds one, whose variables then need no memory until they are placed.
            Loss and optimizer are those it was compiled with, unless `step` says others.
        devices: `["GPU:0", "GPU:1"]` or `"GPU:0-1"`; they need not be present on this machine. Of a topology, all.
        batch_size: Rows of a batch.
        strategy: `auto`, `single`, `layer-split`, `mirrored` (a replica on each device) or `mixed` (of several).
        replicas: Number of copies of the model, each of which trains on a part of the batch, on so many groups of
            consecutive devices. `auto` makes one per device if `mirrored`, and chooses if the strategy is `auto` too.
            `(3, 1)`: three replicas, with one of the first three devices each; all share the fourth device.
        microbatches: Number of parts of a (replica's) batch, so that devices work at the same time; or `auto`.
        hardware: Catalogue name of the devices, e.g. `a100-80gb`; looked up by the driver's title or assumed otherwise.
        link: Catalogue name of the links between them, e.g. `nvlink3`.
        topology: In place of both: a host of the catalogue, `dgx-h100` or `64x dgx-h100`, or a TOML file.
        memory_limit: Usable memory of each device: `8GiB`, or a size by device.
        costs: `analytic`, by FLOPs and bytes; `measured` on the devices that are here; or a file of measured costs.
        objective: `throughput`, the time of a step, or `memory`, the largest peak.
        time_limit: Seconds for tracing and the search, which has 30 of them, or all if there are fewer; without one, it
            has ten. Measuring, `what_if`, and the reasons of a refusal have time of their own.
        seed: Seed of the solver; the same seed gives the same plan.
        step: Training or inference, another loss or optimizer, shapes of inputs.
        parallelism: Schedule, recompute, synchronous or asynchronous updates.
        constraints: Devices that parts of the model may use, and parts that share a device.
        what_if: Whether to plan anew for one more device, twice the bandwidth of links, and 1 GiB more on the fullest.
        cache: Whether to take a plan that was made before of the same step, request, costs and versions.
        on_progress: As for `compile_plan`: called with what is being done and the fraction done.

    Raises:
        UsageError: An argument is wrong.
        ModelError: The model cannot be traced.
        InfeasibleError: No placement fits into memory, or requirements contradict each other.
        TimeLimitError: No plan was found in time.

    Example:
        >>> import keras, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> plan = partitioner.plan(model, ["CPU:0", "CPU:1"], batch_size=64, strategy="layer-split")
        >>> plan.num_stages, plan.predicted.step_seconds > 0, plan.solver.gap < 1
        (2, True, True)
    """
    request = Request(
        step=step or Step(),
        machine=Machine(devices=devices, hardware=hardware, link=link, topology=topology, memory_limit=memory_limit),
        batch_size=batch_size,
        strategy=strategy,
        replicas=replicas,
        microbatches=microbatches,
        parallelism=parallelism or Parallelism(),
        constraints=constraints or Constraints(),
        costs=costs,
        search=Search(objective=objective, time_limit=time_limit, seed=seed, what_if=what_if, cache=cache),
    )
    planned = compile_plan(built(model), request, on_progress=on_progress)
    if isinstance(model, keras.Model):
        return planned
    return replace(planned, traced=replace(planned.traced, build=model))


def place(
    model: keras.Model | Callable[[], keras.Model],
    plan: PlanDocument,
    *,
    example_inputs: Any = None,
    example_targets: Any = None,
) -> PlacedModel:
    """A Keras model that runs as planned: compile, fit, evaluate, predict and save work as usual.

    The placed model shares its variables with `model`; they move to their planned devices. Those of a model that a
    function builds are initialized there, to the values that they would have had without a plan. It is compiled with
    the plan's loss and optimizer. A logical CPU device replaces each missing GPU of the plan.

    Args:
        model: The model that was planned, or a model built alike, or a function that builds one: each call then places
            another model, which is `placed.model`.
        plan: From `plan`, or `Plan.load`.
        example_inputs: As in `Step`, where the plan was loaded and the model needs them.
        example_targets: As `example_inputs`.

    Raises:
        UsageError: The plan is for another model, or the devices cannot be made available.
        ModelError: The model cannot be traced, or replicas would need copies of variables that Keras does not own.

    Example:
        >>> import keras, numpy, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> plan = partitioner.plan(model, ["CPU:0", "CPU:1"], batch_size=64, strategy="layer-split")
        >>> placed = partitioner.place(model, plan)
        >>> history = placed.fit(numpy.ones((64, 8)), numpy.ones((64, 1)), batch_size=64, epochs=3, verbose=0)
        >>> history.history["loss"][-1] < history.history["loss"][0]
        True
    """
    devices = runtime.set_up_devices(sorted({*plan.placement.values(), *plan.used_devices}))
    traced = plan.traced if isinstance(plan, Plan) else None
    if traced is None or not traced.serves(model):
        traced = traced_again(built(model), plan, example_inputs=example_inputs, example_targets=example_targets)
    return place_traced(traced, plan, traced.model, devices)


def auto_place(
    model: keras.Model | Callable[[], keras.Model], devices: str | Sequence[str] | None = None, **arguments: Any
) -> PlacedModel:
    """`place(model, plan(model, ...))`; takes the arguments of `plan`; `placed.plan` is the plan.

    Example:
        >>> import keras, numpy, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=64)
        >>> placed.predict(numpy.ones((64, 8)), verbose=0).shape
        (64, 1)
    """
    return place(model, plan(model, devices, **arguments))


def verify(model: keras.Model, placed: PlacedModel, *, num_steps: int = 5, seed: int = 0) -> Verification:
    """Compare a placed model with the unplaced model.

    Compares outputs, loss, gradients and the weights after `num_steps` training steps, the copies of the weights in all
    replicas, and reads back the device of every executed op. Variables and optimizer are unchanged when it returns.

    Raises:
        UsageError: `placed` was not made from `model` in this process.
        VerificationError: A device ran out of memory.

    Example:
        >>> import keras, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=64, strategy="layer-split")
        >>> verification = partitioner.verify(model, placed)
        >>> verification.passed, verification.misplaced_ops, verification.gradients_max_rel_diff < 1e-5
        (True, (), True)
    """
    plan, program = _made_from(model, placed, "verify")
    kind, specs = program.signatures()[0]
    step = program.step(kind, specs)
    objective = training_objective(placed) if kind is StepKind.TRAIN and not step.is_own else None
    asked = num_steps if kind is StepKind.TRAIN else 1
    reference = host_reference(step.graph, plan, asked)
    verification = verify_placed(
        model,
        step,
        program.execution(step),
        emit_function,
        emit_stepwise,
        compute_loss=objective.compute_loss if objective else None,
        optimizer=objective.optimizer if objective else None,
        ran_on=program.devices,
        num_steps=reference.num_steps or 1,
        seed=seed,
        differing_copies=lambda: placed.differing_variables(tolerance_of_copies(program.devices)),
        with_reference=reference.num_steps > 0,
    )
    return replace(verification, note=reference.note)


def measure_step(placed: PlacedModel) -> MeasuredStep:
    """Run steps of a placed model on random data: how long one takes, and what devices do meanwhile.

    Variables and optimizer are unchanged when it returns.

    Raises:
        UsageError: Its replicas update asynchronously: they have no step in common.
    """
    return measure_placed_step(placed)


def bench(
    model: keras.Model,
    placed: PlacedModel,
    *,
    num_steps: int = 5,
    num_rounds: int = 10,
    alone: bool = False,
    build: Callable[[], keras.Model] | None = None,
    seed: int = 0,
    on_progress: Callable[[str], object] | None = None,
) -> Benchmark:
    """Time steps of a placed model, in turns with the model on one device and, where it applies, MirroredStrategy.

    Steps run on a random batch of the plan's size, as `fit` runs them. Variables and optimizer are unchanged when it
    returns. The others have variables of their own, so that devices hold more than in training.

    Args:
        model: The unplaced model.
        placed: The placed model.
        num_steps: Steps of each contender in a round.
        num_rounds: Rounds, in each of which every contender has a turn.
        alone: Whether to time the placed model only.
        build: Builds the model anew; by default Keras clones it, which it cannot do with every subclassed model.
        seed: Seed of the batch.
        on_progress: Called with what is done next.

    Raises:
        UsageError: `placed` was not made from `model` in this process, or a number is below 1.
        CheckError: A device ran out of memory in a step of the placed model.

    Example:
        >>> import keras, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=64, strategy="layer-split")
        >>> result = partitioner.bench(model, placed, num_steps=2, num_rounds=2, alone=True)
        >>> [contender.median_seconds > 0 for contender in result.contenders]
        [True]
    """
    plan, program = _made_from(model, placed, "bench")
    for name, value in (("num_steps", num_steps), ("num_rounds", num_rounds)):
        if value < 1:
            raise UsageError(f"{name} is {value}; expected at least 1")
    kind, specs = program.signatures()[0]
    step = program.step(kind, specs)
    (batch,) = random_batches(specs[:2], step.graph.batch_size, 1, seed)
    return run_benchmark(
        Subject(model=model, placed=placed, plan=plan, step=step, batch=batch, build=build),
        num_steps=num_steps,
        num_rounds=num_rounds,
        is_alone=alone,
        on_progress=on_progress or (lambda _: None),
    )


def _made_from(model: keras.Model, placed: PlacedModel, function: str) -> tuple[PlanDocument, PlacedProgram]:
    """The plan and the functions of a model placed in this process.

    Raises:
        UsageError: It was loaded, or made from another model.
    """
    program = placed.program
    if placed.model is not model or placed.plan is None or not isinstance(program, PlacedProgram):
        raise UsageError(
            f"{function}() needs the model that `placed` was made from",
            help="that is placed.model, as place() returned it",
        )
    return placed.plan, program


def explain(
    model: keras.Model | Callable[[], keras.Model],
    plan: PlanDocument,
    *,
    time_limit: float | None = None,
    example_inputs: Any = None,
    example_targets: Any = None,
) -> Explanation:
    """What limits a plan, and the three changes of its request that gain most; each is planned before it is named.

    Args:
        model: The model that was planned, or a model built alike, or a function that builds one.
        plan: From `plan`, or `Plan.load`. Without a model, `plan.explain()` says what limits it.
        time_limit: Seconds for each change, in place of those that the plan had.
        example_inputs: As in `Step`, where the plan was loaded and the model needs them.
        example_targets: As `example_inputs`.

    Raises:
        UsageError: The plan is for another model, or does not say what was asked for.
        ModelError: The model cannot be traced.
    """
    return explain_with_moves(
        built(model), plan, time_limit=time_limit, example_inputs=example_inputs, example_targets=example_targets
    )


def load(path: str | Path) -> PlacedModel:
    """The trainable model that `partition` or `export` wrote: DIR, or the `placed_model` in it.

    Raises:
        ModelError: There is no placed model at `path`.
        UsageError: This machine lacks a device of the model.

    Example:
        >>> import keras, numpy, partitioner, tempfile
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=64, strategy="layer-split")
        >>> folder = tempfile.mkdtemp()
        >>> placed.export(folder)
        >>> loaded = partitioner.load(folder)
        >>> x = numpy.ones((64, 8))
        >>> bool(numpy.allclose(loaded.predict(x, verbose=0), placed.predict(x, verbose=0)))
        True
    """
    path = Path(path)
    return load_placed(path / "placed_model" if (path / "placed_model").is_dir() else path)


def write_saved_model(placed: PlacedModel, path: str | Path) -> None:
    """Write the placed SavedModel with the planned device names, even if other devices replace them here.

    Raises:
        OSError: It cannot be written: no room, no permission.
    """
    try:
        export_saved_model(placed, path)
    except _ERRORS_OF_FILES as error:
        # "{{node ...}} /the/path; No space left on device [Op:SaveV2]"
        raise OSError(None, error.message.rpartition("; ")[2].partition(" [Op:")[0], str(path)) from error


def with_verification(plan: Plan, verification: Verification) -> Plan:
    """The plan with the result of its verification."""
    return replace(plan, verification=verification)


def with_measured(plan: Plan, measured: MeasuredStep) -> Plan:
    """The plan with measured steps, which its page and its timeline then show."""
    return replace(plan, measured=measured)
