"""The steps of which ops are measured, and what each took, alone and beside other devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from partitioner.ir.costed import CostedGraph
from partitioner.measure.crowd import Crowding, busy, slow_down
from partitioner.measure.step_times import StepTimes, in_turns, seconds_of_moment, undisturbed

SHORT_SECONDS = 0.02
"""A shorter step is timed in moments of its own, as training runs it: one of 0.3 ms takes twice as long in the runs
between profiles. That comes last, as the profiler leaves out the ops that a hundred runs have shown to be cheap."""


@dataclass(frozen=True, kw_only=True)
class Measurable:
    """A step that can be run.

    Attributes:
        costed: Its op graph with costs, for the batch size of the runs.
        run: Runs it to its end on the device to be measured.
        others: Run it on the other devices of the host, with variables of their own.
        calls: By call of a loop or of what XLA compiled, the ops in it. It is measured as one, and shared out by costs.
        is_of_model: Whether it is a step of the model. What another takes besides its ops is no overhead of theirs.
    """

    costed: CostedGraph
    run: Callable[[], Any]
    others: Sequence[Callable[[], Any]] = ()
    calls: Mapping[str, Collection[str]] = field(default_factory=dict)
    is_of_model: bool = True

    @property
    def names(self) -> frozenset[str]:
        """Names under which its time is recorded: of ops and calls."""
        return frozenset({*self.costed.graph.op, *self.calls})


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step that was measured.

    Attributes:
        step: The step.
        times: What it took.
        alone: Seconds by op, alone.
        crowded: Slow-down beside other devices, if there are any.
    """

    step: Measurable
    times: StepTimes
    alone: Mapping[str, float]
    crowded: Crowding = field(default_factory=Crowding)

    @property
    def num_working(self) -> int:
        """How many ops do work."""
        return sum(cost.flops > 0 or cost.moved_bytes > 0 for cost in self.step.costed.costs)

    def adding_up(self, overhead_seconds: float) -> dict[str, float]:
        """Seconds by op alone that, with an overhead each, add up to a step of the model; to no more than another."""
        total, left = sum(self.alone.values()), self.times.step_seconds
        left = max(0.0, left - overhead_seconds * self.num_working) if self.step.is_of_model else min(left, total)
        share = left / total if total else 1.0
        return {name: share * seconds for name, seconds in self.alone.items()}


def timed_warm(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Short steps as they run over and over, alone and beside other devices; Ctrl-C leaves all as they are."""
    short = [number for number, one in enumerate(steps) if one.times.step_seconds < SHORT_SECONDS]
    found = list(steps)
    try:
        turns = in_turns([partial(_moments, steps[number].step) for number in short])
    except KeyboardInterrupt:
        return found
    for number, moments in zip(short, turns, strict=True):
        one, (alone, beside) = steps[number], zip(*moments, strict=True)
        found[number] = replace(
            one,
            times=replace(one.times, step_seconds=undisturbed(alone)),
            crowded=replace(one.crowded, of_step=slow_down(alone, beside)),
        )
    return found


def _moments(step: Measurable) -> tuple[float, float]:
    """Seconds of the step alone, and beside other devices right after."""
    alone = seconds_of_moment(step.run)
    if not step.others:
        return alone, alone
    with busy(step.others):
        return alone, seconds_of_moment(step.run)
