"""The simulated schedule of one step: runs of ops, transfers over links, memory of devices."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """One op on one device, in seconds from the start of the step."""

    op: str
    device: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """The transfer of one tensor from one device to another."""

    tensor: str
    source: str
    target: str
    size_bytes: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A tensor on a device at some moment, with the bytes of its buffers: one for each microbatch that is there."""

    tensor: str
    size_bytes: int
    num_buffers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak memory of one device in bytes, split by what it holds at that moment.

    `largest` are the largest tensors at that moment, `seconds` after the start of the step, without variables.
    """

    parameter_bytes: int = 0
    slot_bytes: int = 0
    state_bytes: int = 0
    gradient_bytes: int = 0
    activation_bytes: int = 0
    seconds: float = field(default=0.0, compare=False)
    largest: tuple[HeldTensor, ...] = field(default=(), compare=False)

    @property
    def total_bytes(self) -> int:
        """Everything held at the peak."""
        return self.parameter_bytes + self.slot_bytes + self.state_bytes + self.gradient_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A simulated step. Devices are canonical names; every device of the topology has an entry.

    `memory` has (seconds, bytes held from then on) of each device, ascending.
    """

    step_seconds: float
    busy_seconds: dict[str, float]
    peak: dict[str, MemoryUse]
    runs: tuple[OpRun, ...] = field(default=(), repr=False)
    sends: tuple[Send, ...] = field(default=(), repr=False)
    memory: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict, repr=False)
