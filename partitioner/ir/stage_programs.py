"""A placed step cut into stage programs: the ops of each stage for one microbatch, and values between programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ProgramKind(StrEnum):
    """When a program runs: once before the microbatches, per microbatch, or once after all of them."""

    ONCE = "once"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"
    UPDATE = "update"


class Gather(StrEnum):
    """How the values that microbatches give for one tensor become the value of the whole batch.

    `SUM` adds (a gradient), `CONCAT` joins along the first axis (the slices of a sparse gradient), `FIRST` takes the
    first (a value that depends on no row).
    """

    SUM = "sum"
    CONCAT = "concat"
    FIRST = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """Ops that run as one function on one device.

    Attributes:
        kind: When it runs.
        stage: Index of its stage; for programs that run once, their index among those of the kind.
        device: Name of its device, as the placement spells it.
        ops: Names of its ops in graph order; constants and recomputed ops occur in several programs.
        inputs: Names of the tensors it is given: arguments of the step and outputs of other programs.
        outputs: Names of the tensors that other programs, or the caller of the step, need of it.
        waits_for: Indices of programs of its kind that must end first, though it reads none of their outputs.
    """

    kind: ProgramKind
    stage: int
    device: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedState:
    """A variable that forward ops read and write: its value is carried from microbatch to microbatch, and written once
    at the end, so that a step that fails changes nothing.

    Attributes:
        variable: Its name in the op graph.
        stage: The stage whose forward program uses it, or -1 if none does.
        read: The tensor that stands for its value before a microbatch; empty if it is only written.
        written: The tensor that holds its value after a microbatch.
    """

    variable: str
    stage: int
    read: str
    written: str


@dataclass(frozen=True, kw_only=True)
class StagePrograms:
    """Every program of a step, and how values are gathered.

    Attributes:
        stages: Device of each stage; a device may hold several.
        once: Programs that depend on no row of the batch (reads of parameters), in an order in which they can run.
        forward: One per stage; stage s needs only stages before it. With a single stage that is not recomputed, the
            program runs the backward ops too: they read the forward results in place, and free them as they run.
        backward: One per stage, needing only stages behind it; none in inference.
        weights: What the backward program of a stage leaves for later: the gradients that no other stage waits for.
            None for most schedules, nor for a stage that recomputes or that no stage waits for.
        update: In an order in which they can run; none in inference.
        gathered: For each tensor that update programs (or the caller) need of all microbatches together, how.
        states: The variables carried through forward programs.
        aliases: Tensors read from a variable after it was written, by name, and the tensor that was written.
        recomputed: Stages whose backward program reruns their forward ops instead of keeping what these made.
        rerun: Of those whose backward program reruns only some of them, these.
        relocated: New device of each op that had to leave its own, so that stages do not wait for each other in a
            cycle.
    """

    stages: tuple[str, ...]
    once: tuple[StageProgram, ...]
    forward: tuple[StageProgram, ...]
    backward: tuple[StageProgram, ...]
    weights: tuple[StageProgram, ...] = ()
    update: tuple[StageProgram, ...]
    gathered: Mapping[str, Gather]
    states: tuple[CarriedState, ...] = ()
    recomputed: frozenset[int] = frozenset()
    rerun: Mapping[int, frozenset[str]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    relocated: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> Iterable[StageProgram]:
        """All programs, in an order in which one microbatch can run."""
        return (*self.once, *self.forward, *reversed(self.backward), *self.weights, *self.update)

    @property
    def rerun_ops(self) -> tuple[str, ...]:
        """The ops of `rerun`, of all stages, sorted."""
        return tuple(sorted(frozenset().union(*self.rerun.values())))

    @property
    def repeated(self) -> Iterable[StageProgram]:
        """The programs that run for every microbatch."""
        return (*self.forward, *reversed(self.backward), *self.weights)
