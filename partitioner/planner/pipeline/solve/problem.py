"""What the process is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.stages.schedules import ScheduleKind

MOST_PROBLEMS = 16
"""Shapes in a request."""
MOST_CALLS = 4_000_000
"""Calls in which longest paths are looked for, and what it takes to solve programs besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutProblem:
    """A row of n items to be cut into stages, each of which waits for the one before.

    Attributes:
        forward: Running sums of seconds of a microbatch forward, n + 1 of them.
        backward: The same backward; 0 in inference.
        weights: The most of it that the schedule leaves for later; 0 where it leaves nothing.
        num_leaving: Running count of items that leave something.
        once: Running sums of seconds before all microbatches.
        summing: The same of sums of gradients over replicas, behind all microbatches.
        updating: The same of updates, which wait for all devices.
        call_seconds: Of a call beyond its work.
        there_seconds: Of a microbatch over the boundary behind each stage but the last, at the least.
        back_seconds: Of its gradients.
        crossing_bytes: `(n + 1,)` each: of all activations, and of all gradients, that cross a position.
        routes: Over each boundary, there and back: latency, and seconds of a byte.
        crossed: The first and the last position at which gradients cross a boundary; in inference all positions.
        ranges: Of each stage but the last, the first and the last position at which it may end; other cuts take longer
            than is asked for.
        keeps: The stages that do not recompute, unless they take longer than is asked for; those that do leave nothing.
        devices: Device of each stage, by index.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        training: Whether there are backwards.
        most_work: Seconds of a microbatch in a stage, both ways: stages that take longer are not asked for.
        bound_seconds: A bound that is known.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    num_leaving: tuple[int, ...]
    once: tuple[float, ...]
    summing: tuple[float, ...]
    updating: tuple[float, ...]
    call_seconds: float
    there_seconds: tuple[float, ...]
    back_seconds: tuple[float, ...]
    crossing_bytes: tuple[tuple[float, ...], tuple[float, ...]]
    routes: tuple[tuple[tuple[float, float], tuple[float, float]], ...]
    crossed: tuple[int, int]
    ranges: tuple[tuple[int, int], ...]
    keeps: tuple[bool, ...]
    devices: tuple[int, ...]
    num_microbatches: int
    schedule: ScheduleKind
    training: bool
    most_work: float
    bound_seconds: float

    @property
    def num_items(self) -> int:
        """n."""
        return len(self.forward) - 1

    @property
    def update_call_seconds(self) -> float:
        """Of the call for the updates of a device, which has one if it updates anything."""
        return self.call_seconds if self.updating[-1] else 0.0

    def hop_seconds(self, ends: Sequence[int]) -> tuple[list[float], list[float]]:
        """What a microbatch takes over each boundary, and its gradients, where stages but the last end there."""
        there, back = (
            [
                routes[way][0] + routes[way][1] * sizes[end] if sizes[end] else 0.0
                for routes, end in zip(self.routes, ends, strict=True)
            ]
            for way, sizes in enumerate(self.crossing_bytes)
        )
        return there, back


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """Cuts to bound.

    Attributes:
        problems: One for each shape of a pipeline.
        enough_seconds: Bounds need not be larger.
        seconds: Time for all of them.
        most_calls: In which longest paths are looked for, and what it takes to solve programs besides. Time is for
            machines that are slow or busy: on others the answer does not depend on it.
    """

    problems: tuple[CutProblem, ...]
    enough_seconds: float
    seconds: float
    most_calls: int = MOST_CALLS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStep:
    """A bound on the step of all cuts, and the best cut that was seen on the way.

    Attributes:
        seconds: The bound.
        ends: Positions at which stages but the last end; empty where no cut was seen.
    """

    seconds: float
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAnswer:
    """For each problem, what was found."""

    steps: tuple[LeastStep, ...]
