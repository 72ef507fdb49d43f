"""plan.json: the placement of every op, predicted figures, and the proved bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec

from partitioner.ir.json import from_json, to_json
from partitioner.ir.planned_ops import PlannedOps
from partitioner.ir.requirements import Requirement
from partitioner.ir.strangers import refuse_strangers

SCHEMA = "partition-plan/1"
MOST_BARS = 2000
"""A plan has at most this many bars of each kind: each takes 150 bytes, and nobody can look at more."""


class Strategy(StrEnum):
    """How the model is spread over devices."""

    AUTO = "auto"
    SINGLE = "single"
    LAYER_SPLIT = "layer-split"
    MIRRORED = "mirrored"
    MIXED = "mixed"


class Objective(StrEnum):
    """The objective of a plan."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    """In plans of earlier versions; not planned for any more."""
    MEMORY = "memory"


class Updates(StrEnum):
    """Whether replicas update their variables together, or shared ones without waiting for each other."""

    SYNC = "sync"
    ASYNC = "async"


class JitCompile(StrEnum):
    """Whether XLA compiles the programs of devices; `AUTO`: those of GPUs, as Keras does."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"

    @classmethod
    def of(cls, jit_compile: bool | str) -> JitCompile:
        """The member for Keras' argument: True, False or `auto`."""
        if isinstance(jit_compile, bool):
            return cls.ON if jit_compile else cls.OFF
        return cls(jit_compile)


class Origin(StrEnum):
    """Where a number comes from; `file` is a topology of the user's own, with numbers that no catalogue has."""

    MEASURED = "measured"
    CATALOGUE = "catalogue"
    FILE = "file"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model the plan is for.

    `loss_origin` and `optimizer_origin` are `compiled`, `option` or `assumed`; `input_shapes` holds the sizes
    that were given for inputs the model leaves open, by input name (empty for the only input).
    """

    source: str
    name: str
    fingerprint: str
    num_ops: int
    num_parameters: int
    batch_size: int
    training: bool
    loss: str = ""
    loss_origin: str = ""
    optimizer: str = ""
    optimizer_origin: str = ""
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A device as planned for. `memory_bytes` is what the plan may use."""

    name: str
    hardware: str
    origin: Origin
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkInfo:
    """A kind of link as planned for; equal links have one entry.

    Attributes:
        name: In the catalogue, or of the user's own; `pcie4+pcie4` goes over host memory.
        origin: Where its numbers come from.
        latency_seconds: Seconds of a message beyond those for its bytes.
        bandwidth_bytes_per_second: Of one direction.
        num_pairs: Number of pairs of devices that it joins, each direction counted.
        num_uplinks: Number of uplinks of this kind, which several devices share to reach all others.
        sent_bytes: Bytes that cross it in a step.
        pairs: Source and target, of all pairs or of the first ones where there are many.
    """

    name: str
    origin: Origin
    latency_seconds: float
    bandwidth_bytes_per_second: float
    num_pairs: int = 0
    num_uplinks: int = 0
    sent_bytes: int = 0
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of one replica on one device. `compute_seconds` and `send_bytes` are of a whole step.

    Replicas may share the device of a stage. Such a stage is listed once, for the first of these replicas, with its
    work for all of them: of n devices that have a stage, replica r uses that of replica r mod n.

    With microbatches a device may hold several stages, and `peak_bytes` is its peak with all of them. `recompute`: the
    backward pass reruns the stage's forward ops instead of keeping their outputs; where that is `selective`, only those
    that the plan's `rerun` names. `compiled`: XLA compiles what its device runs, but for the ops of `uncompiled`,
    counted by reason.
    """

    index: int
    replica: int
    device: str
    layers: tuple[str, ...]
    num_ops: int
    parameter_bytes: int
    peak_bytes: int
    compute_seconds: float
    send_bytes: int
    recompute: bool = False
    selective: bool = False
    compiled: bool = False
    uncompiled: dict[str, int] = field(default_factory=dict)

    @property
    def recompute_in_words(self) -> str:
        """`no`, `selective` or `yes`."""
        return "selective" if self.selective else "yes" if self.recompute else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Simulated figures of one step. `bubble_fraction`: idle share of the used devices' time."""

    step_seconds: float
    latency_seconds: float
    bottleneck_stage: int
    bubble_fraction: float
    peak_bytes: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A simple alternative to the plan, simulated the same way."""

    name: str
    step_seconds: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """A candidate of the search: stages, microbatches and schedule, with the figures of its best stages."""

    num_stages: int
    num_microbatches: int
    schedule: str
    num_recomputed: int
    step_seconds: float
    largest_peak_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsInfo:
    """Where the seconds of ops come from.

    Attributes:
        source: `analytic` (FLOPs and bytes over the hardware's figures), `measured`, or the file of measured costs.
        measured_share: Share of the ops' seconds that was measured on ops of the same shapes; the other seconds of a
            measured device are inferred from similar ops.
        inferred_ops: Share of the inferred seconds, by op type.
    """

    source: str = "analytic"
    measured_share: float = 0.0
    inferred_ops: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """A tensor on a device at its peak: its op, and the bytes of its buffers, one per microbatch there."""

    op: str
    layer: str
    size_bytes: int
    num_buffers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of a used device at its predicted peak, and over the step.

    Attributes:
        device: Its name.
        peak_seconds: When, from the start of the step.
        parameter_bytes: Of trained variables.
        slot_bytes: Of the optimizer's slots.
        state_bytes: Of other variables.
        gradient_bytes: Of gradients of variables.
        activation_bytes: Of everything else that ops made.
        headroom_bytes: Bytes below the limit at the peak; negative if the peak exceeds the limit.
        reserved_bytes: Bytes of a GPU that the plan may not use: those of the driver, and those that TensorFlow leaves
            to libraries.
        largest: The tensors that take most of the peak, at most five, largest first.
        over_time: The most bytes held in each of equal parts of the step.
    """

    device: str
    peak_seconds: float
    parameter_bytes: int
    slot_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    headroom_bytes: int
    reserved_bytes: int
    largest: tuple[LargeTensor, ...] = ()
    over_time: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Everything held at the peak."""
        variables = self.parameter_bytes + self.slot_bytes + self.state_bytes
        return variables + self.gradient_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """A bar of the predicted timeline: a stage's forward or backward of a microbatch (`0F3`), or an update (`U`).

    In one piece, a device has a bar for as long as it works on ops of one kind without a longer break.
    """

    action: str
    device: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTransfer:
    """A bar of the predicted timeline: a tensor on its way to another device, or gradients summed over replicas.

    Attributes:
        op: The op that makes the tensor; empty for sums of gradients.
        layer: Its layer, if it has one.
        source: The device that sends.
        target: The device that receives; empty for sums of gradients, which all replicas receive.
        size_bytes: Bytes that `source` sends.
        start_seconds: When the first byte leaves.
        end_seconds: When the last byte has arrived.
    """

    op: str
    layer: str
    source: str
    target: str
    size_bytes: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverInfo:
    """How the plan was found and proved. `objective` and bounds are seconds of one step, or in `unit`.

    Attributes:
        status: `optimal`, `feasible`, or `time-limit` where time ended the search.
        objective: The predicted step.
        lower_bound: No placement of these ops, or of these ops on parts of the batch, is faster under these costs. It
            holds for the op graph as traced, not only for its coarsened form.
        gap: Of the objective, the share above `lower_bound`.
        seconds: That the solver took.
        seed: Of the solver.
        unit: Of objective and bounds.
        method: What found the plan of a cost graph.
        family_lower_bound: No plan of the family is faster; None where no family is bounded.
        family_gap: The share above `family_lower_bound`; None with it.
        family: What the family consists of, in words.
    """

    status: str
    objective: float
    lower_bound: float
    gap: float
    seconds: float
    seed: int
    unit: str = "s"
    method: str = ""
    family_lower_bound: float | None = None
    family_gap: float | None = None
    family: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison of the placed model with the unplaced model.

    `*_max_abs_diff` are absolute; `*_max_rel_diff` are norms of differences over the norm of the tensor; `control_*` is
    the unplaced model against itself with the rows of the batch reversed or every weight off by one unit in the last
    place, the largest where several were run. `ran_on` maps planned devices to those that ran. `differing_copies` are
    the variables that did not have the same bits in all replicas. `unexplained` names the tensors whose relative
    difference exceeds both `tolerance` and what the controls explain, the largest first, with both; `explained` those
    that exceed the tolerance alone, and `other_max_rel_diff` is the largest of all others. `note` says what was not
    compared, and why. `passed`: nothing is misplaced or unexplained, and no copy differs.
    """

    outputs_max_abs_diff: float
    loss_max_abs_diff: float
    gradients_max_abs_diff: float
    gradients_max_rel_diff: float
    weights_max_abs_diff: float
    weights_max_rel_diff: float
    control_max_abs_diff: float
    control_max_rel_diff: float
    num_steps: int
    num_ops_checked: int
    misplaced_ops: tuple[str, ...]
    ran_on: dict[str, str]
    outputs_max_rel_diff: float = 0.0
    tolerance: float = 1e-5
    differing_copies: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    other_max_rel_diff: float = 0.0
    note: str = ""
    passed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Real steps of the placed model, on random data.

    Attributes:
        step_seconds: Median of steps by themselves.
        num_steps: How many these were.
        ran_on: The device that ran in place of each planned device.
        timeline: The bars of one step under the profiler, of the first replica, by planned device.
    """

    step_seconds: float
    num_steps: int
    ran_on: dict[str, str]
    timeline: tuple[PlannedAction, ...] = ()

    @property
    def on_stand_ins(self) -> bool:
        """Whether other devices ran than those of the plan, so that times say nothing about these."""
        return any(planned != actual for planned, actual in self.ran_on.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """A box of the picture: a layer, an input, or ops outside any leaf layer.

    `compute_share`: the share that its ops, of the update too, have of the seconds in which devices compute.
    """

    name: str
    class_name: str
    device: str
    output_shape: str = ""
    parameter_bytes: int = 0
    compute_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEdge:
    """An arrow of the picture. `gradient_bytes` travel back along it in training."""

    source: str
    target: str
    size_bytes: int
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """What a stage reads of another one on another device, in a step of one replica; indices of stages.

    `gradient_bytes` travel back along it in training.
    """

    source: int
    target: int
    size_bytes: int
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The objective after a change of the machine, planned again with the same limits.

    Attributes:
        change: In words.
        before: The objective, in `unit`.
        after: The objective with the change; None if it was not planned.
        unit: `s`, `bytes`, or that of a cost graph.
        reason: Why it was not planned.
    """

    change: str
    before: float
    after: float | None
    unit: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """The contents of plan.json.

    `max_staleness`: how many updates of others may be applied between a replica's reading the parameters and its own
    update, where updates are asynchronous. `timeline` and `transfers` are of the first replica, and hold its first
    `MOST_BARS` bars each. `request` holds the arguments of `plan` that differ from their defaults, by name; None stands
    for a value that JSON cannot say. `ops` is empty in plans of earlier versions and of graphs that are too large;
    `stage_edges` in plans of earlier versions. `delays_gradients`: whether each device computes the gradients that
    others wait for before those of weights, where the step runs in one piece. `rerun`: the forward ops that stages with
    selective recompute run again.

    Raises:
        ValueError: The schema is unknown, an op is placed on a device that is not listed, or `ops` does not have a row
            for each op of the placement.
    """

    model: ModelInfo
    devices: tuple[DeviceInfo, ...]
    strategy: Strategy
    num_replicas: int
    num_stages: int
    num_microbatches: int
    schedule: str
    updates: str
    stages: tuple[Stage, ...]
    placement: dict[str, str]
    predicted: Predicted
    baselines: tuple[Baseline, ...]
    solver: SolverInfo
    uncosted_ops: tuple[str, ...] = ()
    verification: Verification | None = None
    measured: MeasuredStep | None = None
    versions: dict[str, str] = field(default_factory=dict)
    objective: Objective = Objective.THROUGHPUT
    requested_strategy: Strategy = Strategy.AUTO
    layers: tuple[PlannedLayer, ...] = ()
    edges: tuple[PlannedEdge, ...] = ()
    considered: tuple[Considered, ...] = ()
    timeline: tuple[PlannedAction, ...] = ()
    transfers: tuple[PlannedTransfer, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    notes: tuple[str, ...] = ()
    costs: CostsInfo = field(default_factory=CostsInfo)
    links: tuple[LinkInfo, ...] = ()
    max_staleness: int = 0
    requirements: tuple[Requirement, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    request: dict[str, Any] = field(default_factory=dict)
    stage_edges: tuple[StageEdge, ...] = ()
    ops: PlannedOps = field(default_factory=PlannedOps)
    jit_compile: JitCompile = JitCompile.AUTO
    delays_gradients: bool = False
    rerun: tuple[str, ...] = ()
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema!r}, this version reads {SCHEMA!r}")
        unlisted = sorted(set(self.placement.values()) - {device.name for device in self.devices})
        if unlisted:
            raise ValueError(f"the placement uses devices that `devices` does not list: {', '.join(unlisted)}")
        if len(self.ops) not in (0, len(self.placement)):
            raise ValueError(f"`ops` has {len(self.ops):,} rows, but the placement {len(self.placement):,} ops")

    def to_json(self) -> str:
        """The text of plan.json: sorted keys, two spaces per level."""
        return to_json(self, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read plan.json.

        Raises:
            msgspec.ValidationError: A field is missing or wrong, or names what the plan does not have.
        """
        plan = from_json(text, cls)
        try:
            refuse_strangers(plan)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error
        return plan

    def save(self, path: str | Path) -> None:
        """Write plan.json to `path`."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the plan that `save` wrote to `path`."""
        return cls.from_json(Path(path).read_bytes())

    def placed_anew(self, placement: dict[str, str], **more: Any) -> Self:
        """The plan for another graph: with another placement and further fields, without the ops of its own graph."""
        return replace(self, placement=placement, ops=PlannedOps(), **more)

    def stages_of(self, replica: int) -> tuple[Stage, ...]:
        """The stages of one replica, in order; stages that it shares may be listed under another replica."""
        return tuple(peers[replica % len(peers)] for peers in self._peers.values())

    def replicas_of(self, stage: Stage) -> tuple[int, ...]:
        """The replicas that use a stage."""
        return tuple(range(stage.replica, self.num_replicas, len(self._peers[stage.index])))

    @cached_property
    def _peers(self) -> dict[int, list[Stage]]:
        """The stages of all replicas by stage index, in the order of replicas."""
        peers: dict[int, list[Stage]] = {}
        for stage in self.stages:
            peers.setdefault(stage.index, []).append(stage)
        return peers

    def devices_of(self, replica: int) -> tuple[str, ...]:
        """Canonical names of the devices of one replica, in stage order."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages_of(replica)))

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Canonical names of the devices that run at least one stage, in stage order, replica by replica."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))
