"""The result of a benchmark: predicted beside measured, and how far the machine can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitioner.timing.render import render_benchmark

SCHEMA = "partition-bench/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to run the model's steps.

    Attributes:
        name: `the plan`, `one device` or `MirroredStrategy`.
        devices: Canonical names of the devices that run it.
        predicted_seconds: Of a step, by the plan; None where it says nothing of this contender.
        round_seconds: Of each round, the median seconds of its steps; empty if it was not run.
        median_seconds: Median of the rounds that count; None if it was not run.
        reason: Why it was not run, or not to the end; empty if it was.
    """

    name: str
    devices: tuple[str, ...] = ()
    predicted_seconds: float | None = None
    round_seconds: tuple[float, ...] = ()
    median_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeak:
    """Peak memory of a device of the plan; `measured_bytes` is None where TensorFlow does not count, as on CPUs."""

    device: str
    predicted_bytes: int
    measured_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Measured steps of a placed model and of what it is compared with.

    Attributes:
        model: Name of the model.
        fingerprint: Its fingerprint, as in the plan.
        batch_size: Rows of a batch.
        training: Whether a step trains; otherwise it predicts.
        devices: The device that ran in place of each device of the plan.
        contenders: The placed model first.
        memory: Of each used device, while only the placed model ran.
        num_steps: Steps of each contender in a round.
        num_loops: Busy loops that ran at once in each round, to see whether the machine had as many cores free.
        cores: How many cores they got in each round.
        disturbed_rounds: Numbers of the rounds, from 0, in which they got too few: medians leave them out, unless all
            are.
        versions: Of Python and the libraries.
    """

    model: str
    fingerprint: str
    batch_size: int
    training: bool
    devices: Mapping[str, str]
    contenders: tuple[Contender, ...]
    memory: tuple[DevicePeak, ...]
    num_steps: int
    num_loops: int
    cores: tuple[float, ...]
    disturbed_rounds: tuple[int, ...]
    versions: Mapping[str, str]
    schema: str = SCHEMA

    @property
    def num_rounds(self) -> int:
        """How many rounds there were."""
        return len(self.cores)

    @property
    def counted_rounds(self) -> tuple[int, ...]:
        """Numbers of the rounds that count: those that were not disturbed, or all if all were."""
        every = range(self.num_rounds)
        return tuple(number for number in every if number not in self.disturbed_rounds) or tuple(every)

    @property
    def has_stand_ins(self) -> bool:
        """Whether a logical CPU device ran in place of a missing GPU: then times say nothing about GPUs."""
        return any(device != ran for device, ran in self.devices.items())

    def to_text(self, *, width: int = 100, color: bool = False) -> str:
        """Tables of times and memory, and what to make of them.

        Args:
            width: Columns of the page.
            color: Whether to style the text with ANSI escapes.
        """
        return render_benchmark(self, width=width, color=color)
