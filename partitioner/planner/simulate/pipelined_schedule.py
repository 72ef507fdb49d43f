"""The simulated schedule of a step in stages and microbatches."""

from __future__ import annotations

from dataclasses import dataclass, field

from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import MemoryUse, Schedule, Send
from partitioner.planner.simulate.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A simulated step. Devices are canonical names; every device of the topology has an entry.

    Attributes:
        step_seconds: Until the last program has ended.
        busy_seconds: Of each device.
        stage_seconds: Of each stage's forwards and backwards, all microbatches together.
        peak: Peak memory of each device.
        timeline: Forwards, backwards (`0F3`) and updates (`U`), in the order in which they were scheduled.
        sends: Every tensor that crosses from one device to another.
        memory: For each device, (seconds, bytes held from then on), ascending.
        exchanges: In which replicas sum their gradients.
    """

    step_seconds: float
    busy_seconds: dict[str, float]
    stage_seconds: tuple[float, ...]
    peak: dict[str, MemoryUse]
    timeline: tuple[PlannedAction, ...] = field(default=(), repr=False)
    sends: tuple[Send, ...] = field(default=(), repr=False)
    memory: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict, repr=False)
    exchanges: tuple[Exchange, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The schedule without the figures of stages."""
        return Schedule(
            step_seconds=self.step_seconds,
            busy_seconds=self.busy_seconds,
            peak=self.peak,
            sends=self.sends,
            memory=self.memory,
        )

    @property
    def largest_peak_bytes(self) -> int:
        """Memory of the fullest device."""
        return max(use.total_bytes for use in self.peak.values())
