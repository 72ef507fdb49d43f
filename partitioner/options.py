"""The options of a plan, as frozen values that are validated when they are made.

The API makes them from its arguments and the command line from its flags; lower layers see only these values. They need
no TensorFlow, so the command line refuses wrong values before it loads TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from cost_models.measured import MeasuredCosts
from cost_models.topology import Topology
from partitioner.constraints.match import requirements_of
from partitioner.errors import UsageError
from partitioner.hardware.resolve import chosen_topology
from partitioner.hardware.topology import PresentGpu
from partitioner.ir.devices import DeviceName
from partitioner.ir.plan import DeviceInfo, JitCompile, Objective, Strategy, Updates
from partitioner.ir.requirements import Requirement
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.replicas import replica_groups
from partitioner.planner.pipeline.options import allowed_recompute, allowed_schedules
from partitioner.spelling import argument
from partitioner.stages.schedules import ScheduleKind

Kind = TypeVar("Kind", bound=StrEnum)

# So the others never wait for a replica that takes up to four times as long.
_STALENESS_PER_REPLICA = 4


@dataclass(frozen=True, kw_only=True)
class Step:
    """The step to plan: a model's training step, or its inference.

    Attributes:
        training: Plan forward, loss, gradients and update; inference otherwise.
        loss: Name of a Keras loss, in place of the compiled loss; mean squared error where there is neither.
        optimizer: Name of a Keras optimizer, in place of the compiled optimizer; Adam where there is neither.
        input_shape: Sizes without the batch, a tuple or a tuple per input name, where the model does not say.
        example_inputs: A batch of inputs, where the model does not say their shapes and dtypes.
        example_targets: A batch of targets, where the loss does not say their shapes.
        jit_compile: Whether XLA compiles what each device runs: True, False, or `auto`: as the model was compiled, and
            if that says `auto` too, on GPUs.
        source: Where the model came from, for the record.

    Raises:
        UsageError: `jit_compile` is neither.

    Example:
        >>> from partitioner import Step
        >>> Step(training=False, input_shape=(28, 28, 1)).input_shapes
        {'': (28, 28, 1)}
    """

    training: bool = True
    loss: str | None = None
    optimizer: str | None = None
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None
    example_inputs: Any = None
    example_targets: Any = None
    jit_compile: bool | str = "auto"
    source: str = ""

    def __post_init__(self) -> None:
        if self.jit_compile not in (True, False, "auto"):
            raise UsageError(f"jit_compile is {self.jit_compile!r}, expected True, False or 'auto'")

    @property
    def asked_to_compile(self) -> JitCompile:
        """Whether XLA compiles, as a plan has it."""
        return JitCompile.of(self.jit_compile)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Sizes without the batch by input name; the name of an only input is empty."""
        if self.input_shape is None:
            return {}
        if isinstance(self.input_shape, Mapping):
            return {name: tuple(sizes) for name, sizes in self.input_shape.items()}
        return {"": tuple(self.input_shape)}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices to plan for.

    Attributes:
        devices: `["GPU:0", "GPU:1"]` or `"GPU:0-1"`; they need not be present. With a topology, all of its devices by
            default.
        hardware: Catalogue name of the devices, e.g. `a100-80gb`; looked up by the driver's title or assumed otherwise.
        link: Catalogue name of the links between them, e.g. `nvlink3`.
        topology: In place of both: a host of the catalogue, `dgx-h100` or `64x dgx-h100`, a TOML file, or a value.
        memory_limit: Usable memory of each device: `8GiB`, or a size by device.
        gpus: The GPUs of this machine, by canonical name; see `recognised`.

    Raises:
        UsageError: No device is named, or a name, a size or the file is wrong.
    """

    devices: str | Sequence[str] | None = None
    hardware: str | None = None
    link: str | None = None
    topology: str | Path | Topology | None = None
    memory_limit: str | float | Mapping[str, str | float] | None = None
    gpus: Mapping[str, PresentGpu] = field(default_factory=dict)
    names: tuple[DeviceName, ...] = field(init=False)
    resolved: Topology = field(init=False)
    infos: tuple[DeviceInfo, ...] = field(init=False)

    def __post_init__(self) -> None:
        names, resolved, infos = chosen_topology(
            self.devices,
            topology=self.topology,
            hardware=self.hardware,
            link=self.link,
            memory_limit=self.memory_limit,
            present=self.gpus,
        )
        for name, value in (("names", tuple(names)), ("resolved", resolved), ("infos", infos)):
            object.__setattr__(self, name, value)

    def recognised(self, gpus: Mapping[str, PresentGpu]) -> Machine:
        """The machine with the figures of the GPUs that are present."""
        return replace(self, gpus=gpus) if gpus else self


@dataclass(frozen=True, kw_only=True)
class AsyncUpdates:
    """Asynchronous updates: each replica updates shared parameters as soon as its part of a batch is computed.

    Attributes:
        max_staleness: Number of updates of other replicas between a replica's reading of the parameters and its own
            update, at most; four per replica if None. With 0 replicas take turns.

    Raises:
        UsageError: The number is negative.
    """

    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UsageError(f"max_staleness is {self.max_staleness}, expected at least 0")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How a batch passes through the devices, beyond the strategy and the numbers of replicas and microbatches.

    Attributes:
        schedule: The order in which stages work on microbatches: `sequential`, `gpipe`, `1f1b`, `zb-h1`, `zb-h2`,
            `zb-v`, `interleaved` or `auto`.
        recompute: Whether stages rerun their forward ops in the backward pass rather than keep activations: `none`,
            `all`, or `auto`, where memory requires it; there, only cheap ops if that is enough.
        updates: `sync`: replicas train on parts of the same batch and update together; or `AsyncUpdates(...)`; `async`
            is short for its defaults.

    Raises:
        UsageError: There is no such schedule, recompute or kind of updates.

    Example:
        >>> from partitioner import AsyncUpdates, Parallelism
        >>> Parallelism(updates=AsyncUpdates(max_staleness=8)).asynchronous.max_staleness
        8
        >>> [schedule.value for schedule in Parallelism(schedule="1f1b").schedules]
        ['1f1b']
    """

    schedule: str = "auto"
    recompute: str = "auto"
    updates: Literal["sync", "async"] | AsyncUpdates = "sync"

    def __post_init__(self) -> None:
        allowed_schedules(self.schedule)
        allowed_recompute(self.recompute)
        if not isinstance(self.updates, AsyncUpdates):
            chosen(Updates, self.updates, "updates")

    @property
    def asynchronous(self) -> AsyncUpdates | None:
        """The requested asynchronous updates, if any."""
        if isinstance(self.updates, AsyncUpdates):
            return self.updates
        return AsyncUpdates() if self.updates == Updates.ASYNC else None

    @property
    def schedules(self) -> tuple[ScheduleKind, ...]:
        """The schedules to choose from."""
        return allowed_schedules(self.schedule)


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """The devices that parts of the model may use, and the parts that share a device.

    Keys are regular expressions over whole layer paths and op names.

    Attributes:
        pins: The device of the matching ops; with several replicas, of the first replica.
        forbid: The devices that the matching ops may not use, in any replica.
        colocate: Patterns; all matches of a pattern share a device (in each replica).

    Raises:
        UsageError: A device is not valid, or a pin names several devices.

    Example:
        >>> from partitioner import Constraints
        >>> rules = Constraints(pins={"encoder": "GPU:0"}, colocate=["encoder|head"])
        >>> [requirement.kind.value for requirement in rules.requirements]
        ['pin', 'colocate']
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    forbid: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    colocate: Sequence[str] = ()
    requirements: tuple[Requirement, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "requirements", requirements_of(self.pins, self.forbid, self.colocate))


@dataclass(frozen=True, kw_only=True)
class Search:
    """The objective and the limits of the search.

    Attributes:
        objective: `throughput`, the time of a step, or `memory`, the largest peak.
        time_limit: Seconds for tracing and the search, which then ends with the best plan so far; see `deadline`.
            Without one, the search alone has eight seconds.
        seed: Seed of the solver; the same seed gives the same plan.
        what_if: Whether to plan anew for one more device, twice the bandwidth of links, and 1 GiB more where memory is
            tightest; each change takes as long as the first plan.
        cache: Whether to take a plan that was made before of the same step, request, costs and versions.

    Raises:
        UsageError: There is no such objective, or the time limit is not positive.
    """

    objective: str = "throughput"
    time_limit: float | None = None
    seed: int = 0
    what_if: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        if chosen(Objective, self.objective, "objective") is Objective.LATENCY:
            raise UsageError(
                "the objective latency went: steps do not overlap, so that it is the time of a step",
                help=argument("objective", Objective.THROUGHPUT.value),
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise UsageError(f"time_limit is {self.time_limit}, expected more than 0 seconds")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request for a plan.

    Attributes:
        step: The step to plan.
        machine: The devices to plan for.
        batch_size: Rows of a batch.
        strategy: `auto`, `single`, `layer-split`, `mirrored` or `mixed`.
        replicas: Number of copies of the model, each of which trains on a part of the batch, or `auto`; or numbers of
            devices that do the same, as in `replica_groups`.
        microbatches: Number of parts of a replica's batch, or `auto`.
        parallelism: Schedule, recompute, updates.
        constraints: Pins, forbidden devices, colocation.
        costs: `analytic`, `measured`, the path of a file of measured costs, or its contents.
        search: Objective, time, seed.

    Raises:
        UsageError: A value is wrong, or some contradict each other.
    """

    step: Step = field(default_factory=Step)
    machine: Machine
    batch_size: int = 32
    strategy: str = "auto"
    replicas: int | str | Sequence[int] = "auto"
    microbatches: int | str = "auto"
    parallelism: Parallelism = field(default_factory=Parallelism)
    constraints: Constraints = field(default_factory=Constraints)
    costs: str | Path | MeasuredCosts = "analytic"
    search: Search = field(default_factory=Search)
    groups: ReplicaGroups = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size is {self.batch_size}, expected at least 1")
        groups = replica_groups(
            chosen(Strategy, self.strategy, "strategy"),
            self.replicas,
            self.machine.resolved,
            batch_size=self.batch_size,
            microbatches=self.microbatches,
        )
        object.__setattr__(self, "groups", groups)
        self._refuse_asynchronous()

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of `plan` that differ from their defaults, by name; None for values that JSON cannot say."""
        given: dict[str, Any] = {}
        for options in (self.machine, self, self.step, self.parallelism, self.constraints, self.search):
            given |= _changed_fields(options)
        if (updates := self.parallelism.asynchronous) is not None:
            given |= {"updates": "async"} | _changed_fields(updates)
        return given

    @property
    def max_staleness(self) -> int:
        """The largest staleness of an update: 0 for synchronous updates."""
        asked = self.parallelism.asynchronous
        if asked is None:
            return 0
        return _STALENESS_PER_REPLICA * len(self.groups) if asked.max_staleness is None else asked.max_staleness

    def _refuse_asynchronous(self) -> None:
        """Refuse asynchronous updates that contradict the rest."""
        if self.parallelism.asynchronous is None:
            return
        sync = argument("updates", "sync")
        if not self.step.training:
            raise UsageError("asynchronous updates are of training, and the plan is of inference")
        if self.replicas == "auto" and self.strategy != Strategy.MIRRORED:
            mirrored, mixed = argument("strategy", "mirrored"), argument("strategy", "mixed")
            raise UsageError(
                "asynchronous updates by how many replicas?", help=f"{mirrored}, or {mixed} {argument('replicas', 2)}"
            )
        if not isinstance(self.replicas, (int, str)) and len(set(self.replicas)) > 1:
            raise UsageError(
                "asynchronous replicas update by themselves, so that they cannot share devices",
                help=f"{argument('replicas', len(self.groups))}, or {sync}",
            )
        first = [self.machine.names[index] for index in self.groups[0]]
        if remote := [name.short for name in first if not name.is_local]:
            raise UsageError(
                f"the first of asynchronous replicas is where all parameters are, and {', '.join(remote)} is elsewhere",
                help=f"name devices of this process first, or {sync}",
            )


_NO_ARGUMENTS = ("machine", "step", "parallelism", "constraints", "search", "gpus", "source", "cache")


def _changed_fields(options: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON says them."""
    changed = {}
    for option in fields(options):
        if not option.init or option.name in _NO_ARGUMENTS:
            continue
        default = option.default if option.default_factory is MISSING else option.default_factory()
        value = getattr(options, option.name)
        said = _as_json(value)
        if value is not default and (said is None or said != _as_json(default)):
            changed[option.name] = said
    return changed


def _as_json(value: Any) -> Any:
    """The value as JSON says it; None if it cannot."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return None


def chosen(kind: type[Kind], text: str, what: str) -> Kind:
    """The member of an enumeration that a text names.

    Raises:
        UsageError: There is none; the error lists the members.
    """
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"unknown {what} {text!r}", notes=[f"this version has: {', '.join(kind)}"]) from error
