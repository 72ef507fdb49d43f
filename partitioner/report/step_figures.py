"""Where the seconds of a step go, from plan.json alone.

A step of the first replica takes as long as

    devices compute on average  +  what the busiest computes beyond that  +  transfers it waits for  +  the rest
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from partitioner.ir.plan import MOST_BARS, PlanDocument, PlannedTransfer
from partitioner.ir.units import format_percent, format_seconds
from partitioner.report.critical_path import critical_transfers
from partitioner.report.microbatches import is_staged


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """The figures of the step of the first replica of a plan."""

    plan: PlanDocument

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.plan.predicted.step_seconds

    @cached_property
    def busy(self) -> Mapping[str, float]:
        """Seconds in which each device computes: of stage programs by their bars, which include updates."""
        of_programs = is_staged(self.plan) and 0 < len(self.plan.timeline) < MOST_BARS
        busy = dict.fromkeys(self.plan.devices_of(0), 0.0)
        if of_programs:
            for bar in self.plan.timeline:
                busy[bar.device] = busy.get(bar.device, 0.0) + bar.end_seconds - bar.start_seconds
        else:
            for stage in self.plan.stages_of(0):
                busy[stage.device] += stage.compute_seconds
        return {device: min(seconds, self.seconds) for device, seconds in busy.items()}

    @property
    def busiest(self) -> str:
        """The device that computes longest."""
        return max(self.busy, key=lambda device: self.busy[device])

    @property
    def mean(self) -> float:
        """Seconds in which a device computes, on average."""
        return sum(self.busy.values()) / len(self.busy)

    @cached_property
    def waited_for(self) -> tuple[PlannedTransfer, ...]:
        """The transfers on the critical path."""
        return critical_transfers(self.plan)

    @cached_property
    def link_seconds(self) -> float:
        """Seconds of transfers on the critical path, at most those in which the busiest device does not compute."""
        waited = sum(transfer.end_seconds - transfer.start_seconds for transfer in self.waited_for)
        shown = max((bar.end_seconds for bar in self.plan.timeline), default=0.0)
        if len(self.plan.timeline) >= MOST_BARS and shown:
            waited *= self.seconds / shown  # the plan has the first bars only
        return min(waited, self.seconds - self.busy[self.busiest])

    def share(self, seconds: float) -> float:
        """Their share of the step, 0 to 1."""
        return min(max(seconds / self.seconds, 0.0), 1.0) if self.seconds else 0.0

    def of_step(self, seconds: float) -> str:
        """`1.25 ms of 2.00 ms (62 %)`."""
        return f"{format_seconds(seconds)} of {format_seconds(self.seconds)} ({format_percent(self.share(seconds))})"

    def layers(self, device: str | None = None, *, most: int = 3) -> tuple[str, ...]:
        """The layers, of all or of a device, whose ops take longest; in plans of earlier versions, the first ones."""
        stages = [stage for stage in self.plan.stages_of(0) if device in (None, stage.device)]
        names = dict.fromkeys(layer for stage in stages for layer in stage.layers)
        shares = {layer.name: layer.compute_share for layer in self.plan.layers}
        return tuple(sorted(names, key=lambda name: -shares.get(name, 0.0))[:most])
