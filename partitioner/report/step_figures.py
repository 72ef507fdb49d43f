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

_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """The figures of the step of the first replica of a plan."""

    plan: PlanDocument

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.plan.predicted.step_seconds

    @property
    def mean(self) -> float:
        """Seconds in which a device is busy, on average."""
        return self.seconds * (1 - self.plan.predicted.bubble_fraction)

    @cached_property
    def busy(self) -> Mapping[str, float]:
        """Seconds in which each device is busy, `mean` on average.

        Stages have the seconds of forwards and backwards, and where they are all there is, these are exact. Otherwise
        bars have those of updates too, and what a plan does not show is taken to be equally long on all devices.
        """
        devices = self.plan.devices_of(0)
        computed, shown = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0.0)
        for stage in self.plan.stages_of(0):
            computed[stage.device] += stage.compute_seconds
        for bar in self.plan.timeline:
            shown[bar.device] = shown.get(bar.device, 0.0) + bar.end_seconds - bar.start_seconds
        whole = self.mean * len(devices)
        is_all = sum(computed.values()) >= (1 - _ROUNDING) * whole or len(self.plan.timeline) >= MOST_BARS
        known = computed if is_all or not self.plan.timeline else shown
        more = (whole - sum(known.values())) / len(devices)
        return {device: min(max(known[device] + more, 0.0), self.seconds) for device in devices}

    @property
    def busiest(self) -> str:
        """The device that computes longest."""
        return max(self.busy, key=lambda device: self.busy[device])

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
