"""Microbatches and schedule in words: candidates, and the idle time that a schedule cannot avoid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from partitioner.ir.plan import Considered, PlanDocument
from partitioner.ir.units import format_percent
from partitioner.stages.schedules import ScheduleKind

_MAX_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastIdle:
    """Idle share of the devices' time if `stages` took equally long and sending took no time, and why."""

    share: float
    stages: str
    reason: str


def is_staged(plan: PlanDocument) -> bool:
    """Whether the step runs as stage programs, not as one graph."""
    return bool(passing(plan)) or any(stage.recompute for stage in plan.stages)


def passing(plan: PlanDocument) -> str:
    """`4 microbatches, schedule 1f1b`; empty for one microbatch with the schedule `sequential`."""
    if plan.num_microbatches == 1 and plan.schedule == ScheduleKind.SEQUENTIAL:
        return ""
    return f"{count_microbatches(plan.num_microbatches)}, schedule {plan.schedule}"


def count_microbatches(count: int) -> str:
    """`1 microbatch`, `4 microbatches`."""
    return f"{count:,} microbatch{'' if count == 1 else 'es'}"


def is_chosen(plan: PlanDocument, candidate: Considered) -> bool:
    """Whether the plan has the stages, microbatches and schedule of this candidate."""
    num_recomputed = sum(stage.recompute for stage in plan.stages if stage.replica == 0)
    chosen = plan.num_stages, plan.num_microbatches, plan.schedule, num_recomputed
    shape = candidate.num_stages, candidate.num_microbatches, candidate.schedule, candidate.num_recomputed
    return shape == chosen


def best_candidates(plan: PlanDocument) -> tuple[Considered, ...]:
    """The best candidate for each number of stages and of microbatches, fastest first.

    At most 12 candidates; the chosen candidate is always among them. Candidates that fit are preferred.
    """

    def rank(candidate: Considered) -> tuple[bool, bool, float, int]:
        return not is_chosen(plan, candidate), not candidate.fits, candidate.step_seconds, candidate.largest_peak_bytes

    best: dict[tuple[int, int], Considered] = {}
    for candidate in sorted(plan.considered, key=rank):
        best.setdefault((candidate.num_stages, candidate.num_microbatches), candidate)
    shown = sorted(best.values(), key=lambda candidate: (not is_chosen(plan, candidate), candidate.step_seconds))[
        :_MAX_ROWS
    ]
    return tuple(
        sorted(shown, key=lambda candidate: (candidate.step_seconds, candidate.num_stages, candidate.num_microbatches))
    )


def idle_sentence(plan: PlanDocument) -> str:
    """The idle share of devices, and the share that the schedule itself causes; empty on one device."""
    if len(plan.used_devices) < 2:
        return ""
    idle = f"devices idle {format_percent(plan.predicted.bubble_fraction)} of the step"
    least = least_idle(plan)
    if least is None:
        return idle
    return f"{idle}; {least.stages} would idle {format_percent(least.share)} {least.reason}"


def least_idle(plan: PlanDocument) -> LeastIdle | None:
    """Idle share of a schedule with S equal stages on D devices and M microbatches; None where there is no formula.

    `gpipe` and `1f1b`, a stage per device: (S-1)/(M+S-1) (Huang et al. 2019, section 2.3). `interleaved`, V stages per
    device: (D-1)/(VM+D-1) (Narayanan et al. 2021, section 2.2). In training, `sequential` keeps one device busy at a
    time: (D-1)/D, unless gradients are delayed; in inference it is `gpipe`, as microbatches do not wait for a backward
    pass. `zb-h1` and `zb-h2`, if a forward, a backward and gradients of weights take equally long and M >= S, or 2S-1:
    (S-1)/(3M+S-1) (Qi et al. 2023, section 2.3; `zb-h2` starts late as well, and then does not wait).
    """
    counts = Counter(stage.device for stage in plan.stages if stage.replica == 0)
    num_devices, num_stages, num_microbatches = len(counts), sum(counts.values()), plan.num_microbatches
    if num_devices < 2 or len(set(counts.values())) > 1 or plan.delays_gradients:
        return None
    stages = f"{num_stages} equal stages"
    if plan.schedule == ScheduleKind.SEQUENTIAL and plan.model.training:
        return LeastIdle(share=1 - 1 / num_devices, stages=stages, reason="as one device works at a time")
    if ScheduleKind(plan.schedule).parts_backward and plan.model.training:
        if num_microbatches < (num_stages if plan.schedule == ScheduleKind.ZB_H1 else 2 * num_stages - 1):
            return None
        share = (num_stages - 1) / (3 * num_microbatches + num_stages - 1)
        return LeastIdle(share=share, stages=stages, reason="to fill and drain, about (S-1)/(3M+S-1)")
    if num_stages == num_devices:
        share = (num_stages - 1) / (num_microbatches + num_stages - 1)
        return LeastIdle(share=share, stages=stages, reason="to fill and drain, (S-1)/(M+S-1)")
    if plan.schedule == ScheduleKind.INTERLEAVED:
        per_device = num_stages // num_devices
        share = (num_devices - 1) / (per_device * num_microbatches + num_devices - 1)
        stages = f"{num_devices} devices with {per_device} equal stages each"
        return LeastIdle(share=share, stages=stages, reason="to fill and drain, (D-1)/(VM+D-1)")
    return None
