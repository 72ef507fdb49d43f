"""Evaluate placements of items by simulation, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Considered
from partitioner.ir.schedule import Schedule
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.simulate.unpipelined import timed
from partitioner.planner.simulate.unpipelined_memory import TimedStep, with_memory
from partitioner.stages.delayed_gradients import delayed_gradients
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A placement and its predicted figures.

    `coarsening` has the items that the assignment is of. `sent_bytes` cross links in a step; `over_bytes` are beyond
    the limits, all devices together. `delays` says whether gradients are delayed that no other device waits for.
    """

    coarsening: Coarsening = field(repr=False, compare=False)
    assignment: Assignment
    step_seconds: float
    largest_peak_bytes: int
    sent_bytes: int
    over_bytes: int
    delays: bool = False

    @property
    def fits(self) -> bool:
        """Whether no device's peak exceeds what may be used of it."""
        return self.over_bytes == 0

    @property
    def placement(self) -> dict[str, int]:
        """Device index by op."""
        return self.coarsening.placement(self.assignment)

    @property
    def considered(self) -> Considered:
        """The figures that a plan keeps of it: a stage for each device, one microbatch."""
        return Considered(
            num_stages=len(set(self.assignment)),
            num_microbatches=1,
            schedule=ScheduleKind.SEQUENTIAL.value,
            num_recomputed=0,
            step_seconds=self.step_seconds,
            largest_peak_bytes=self.largest_peak_bytes,
            fits=self.fits,
        )


class PlacementEvaluator:
    """Simulates placements of the items of one coarsening, and keeps their evaluations.

    Gradients that no other device waits for are delayed where there is memory for it.

    Args:
        costed: The step.
        coarsening: The items.
        delays: Whether gradients may be delayed at all; devices that XLA compiles for always delay them.
    """

    def __init__(self, costed: CostedGraph, coarsening: Coarsening, *, delays: bool = True) -> None:
        self._costed, self._coarsening = costed, coarsening
        self._delays = _delays(costed, delays)
        self.evaluations: dict[Assignment, Evaluation] = {}
        self._first_seconds: dict[Assignment, float] = {}
        self._last: tuple[tuple[Assignment, bool], TimedStep] | None = None

    def __call__(self, assignment: Sequence[int]) -> Evaluation:
        """The evaluation of a placement."""
        key = tuple(assignment)
        if key not in self.evaluations:
            tried: list[Evaluation] = []
            for delays in self._delays_on(key):
                tried.append(self._evaluated(key, delays))
                if tried[-1].fits:
                    break
            self.evaluations[key] = min(tried, key=lambda evaluation: evaluation.over_bytes)
            self._first_seconds[key] = tried[0].step_seconds
        return self.evaluations[key]

    def first_seconds(self, assignment: Sequence[int]) -> float:
        """The step of a placement in the order that is tried first, in seconds, whether or not it fits."""
        key = tuple(assignment)
        if key not in self._first_seconds:
            self._first_seconds[key] = self._timed(key, self._delays_on(key)[0]).schedule.step_seconds
        return self._first_seconds[key]

    @property
    def num_timed(self) -> int:
        """Placements that were simulated."""
        return len(self._first_seconds)

    def in_both_orders(self, assignment: Sequence[int]) -> tuple[Evaluation, Evaluation]:
        """The better evaluation of a placement, which is kept, and that in which ops run as they become ready.

        Both are the same where gradients are always delayed.
        """
        found = self(assignment)
        if not found.delays or False not in self._delays:
            return found, found
        as_ready = self._evaluated(found.assignment, False)
        if as_ready.fits and as_ready.step_seconds < found.step_seconds:
            found = self.evaluations[found.assignment] = as_ready
        return found, as_ready

    def _evaluated(self, assignment: Assignment, delays: bool) -> Evaluation:
        schedule = self.schedule(assignment, delays)
        return Evaluation(
            coarsening=self._coarsening,
            assignment=assignment,
            step_seconds=schedule.step_seconds,
            largest_peak_bytes=max(use.total_bytes for use in schedule.peak.values()),
            sent_bytes=sum(send.size_bytes for send in schedule.sends),
            over_bytes=sum(self.over_bytes(schedule)),
            delays=delays,
        )

    def schedule(self, assignment: Sequence[int], delays: bool) -> Schedule:
        """The simulated step of a placement."""
        return with_memory(self._timed(tuple(assignment), delays))

    def _timed(self, assignment: Assignment, delays: bool) -> TimedStep:
        key = assignment, delays
        if self._last is None or self._last[0] != key:
            placement = self._coarsening.placement(assignment)
            delayed = delayed_gradients(self._costed.graph, placement) if delays else {}
            self._last = key, timed(self._costed, placement, delayed=delayed)
        return self._last[1]

    def _delays_on(self, assignment: Assignment) -> tuple[bool, ...]:
        """Whether gradients are delayed, in the order in which it is tried."""
        return self._delays if len(set(assignment)) > 1 else (False,)

    def over_bytes(self, schedule: Schedule) -> list[int]:
        """By how much the peak of each device passes its limit."""
        devices = self._costed.topology.devices
        return [max(0, schedule.peak[placed.name].total_bytes - placed.memory_bytes) for placed in devices]


def _delays(costed: CostedGraph, may_delay: bool) -> tuple[bool, ...]:
    """Whether gradients are delayed, in the order in which to try it; programs of XLA always delay them."""
    if not costed.graph.training:
        return (False,)
    if costed.fusion is not None:
        return (True,)
    return (True, False) if may_delay else (False,)
