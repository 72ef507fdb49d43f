"""Evaluate placements of items by simulation, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Considered
from partitioner.ir.schedule import Schedule
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A placement and its predicted figures.

    `sent_bytes` cross links in a step; `over_bytes` are beyond the limits, all devices together.
    """

    assignment: Assignment
    step_seconds: float
    largest_peak_bytes: int
    sent_bytes: int
    over_bytes: int

    @property
    def fits(self) -> bool:
        """Whether no device's peak exceeds what may be used of it."""
        return self.over_bytes == 0

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
    """Simulates placements of the items of one coarsening, and keeps their evaluations."""

    def __init__(self, costed: CostedGraph, coarsening: Coarsening) -> None:
        self._costed, self._coarsening, self._buffers = costed, coarsening, Buffers(costed)
        self.evaluations: dict[Assignment, Evaluation] = {}

    def __call__(self, assignment: Sequence[int]) -> Evaluation:
        """The evaluation of a placement."""
        key = tuple(assignment)
        if key not in self.evaluations:
            schedule = self.schedule(key)
            peaks = [use.total_bytes for use in schedule.peak.values()]
            self.evaluations[key] = Evaluation(
                assignment=key,
                step_seconds=schedule.step_seconds,
                largest_peak_bytes=max(peaks),
                sent_bytes=sum(send.size_bytes for send in schedule.sends),
                over_bytes=sum(self.over_bytes(schedule)),
            )
        return self.evaluations[key]

    def placement(self, assignment: Sequence[int]) -> dict[str, int]:
        """Device index by op."""
        return {op: assignment[item] for op, item in self._coarsening.item_of.items()}

    def schedule(self, assignment: Sequence[int]) -> Schedule:
        """The simulated step of a placement."""
        return simulate(self._costed, self.placement(assignment), self._buffers)

    def over_bytes(self, schedule: Schedule) -> list[int]:
        """By how much the peak of each device passes its limit."""
        devices = self._costed.topology.devices
        return [max(0, schedule.peak[placed.name].total_bytes - placed.memory_bytes) for placed in devices]
