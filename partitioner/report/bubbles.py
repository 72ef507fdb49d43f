"""Idle times of devices in the predicted timeline, with their causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, PlannedAction, PlannedTransfer
from partitioner.stages.actions import UPDATE

_LEAST_SHARE = 0.005
"""Shorter idle times, as shares of the step, are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """A time in which a device of the first replica idles.

    Attributes:
        device: Its name.
        start_seconds: From the start of the step.
        end_seconds: When it works again, or the step ends.
        cause: `fill`: its first work has not reached it. `drain`: it has done its part, and waits for the others.
            `transfer`: the last thing that it waits for is on its way. `wait`: another device is not done yet.
        reason: The cause in words.
    """

    device: str
    start_seconds: float
    end_seconds: float
    cause: str
    reason: str


def bubbles(plan: PlanDocument) -> tuple[Bubble, ...]:
    """The idle times of all devices that have a timeline, by device and start."""
    devices = dict.fromkeys(bar.device for bar in plan.timeline)
    return tuple(bubble for device in devices for bubble in _of_device(plan, device))


def _of_device(plan: PlanDocument, device: str) -> Iterator[Bubble]:
    least = _LEAST_SHARE * plan.predicted.step_seconds
    bars = sorted((bar for bar in plan.timeline if bar.device == device), key=lambda bar: bar.start_seconds)
    arriving = [sent for sent in plan.transfers if sent.target == device]
    before = 0.0
    for index, bar in enumerate(bars):
        if bar.start_seconds - before > least:
            cause, reason = _cause(bars, index, arriving, before)
            yield Bubble(device=device, start_seconds=before, end_seconds=bar.start_seconds, cause=cause, reason=reason)
        before = max(before, bar.end_seconds)
    if plan.predicted.step_seconds - before > least:
        yield Bubble(
            device=device,
            start_seconds=before,
            end_seconds=plan.predicted.step_seconds,
            cause="drain",
            reason="its part of the step is done",
        )


def _cause(
    bars: Sequence[PlannedAction], index: int, arriving: Sequence[PlannedTransfer], before: float
) -> tuple[str, str]:
    """Why a device idles from `before` until a bar starts."""
    bar = bars[index]
    if bar.action == UPDATE:
        return "drain", "updates wait until every backward pass has ended, and gradients are summed"
    reached = [sent for sent in arriving if before < sent.end_seconds <= bar.start_seconds]
    last = max(reached, key=lambda sent: sent.end_seconds, default=None)
    if index == 0:
        source = f" from {short_name(last.source)}" if last else ""
        return "fill", f"its first work has not reached it{source}"
    if last is None:
        return "wait", "what it works on next is not ready"
    source = short_name(last.source)
    on_the_way = bar.start_seconds - max(before, last.start_seconds)
    if on_the_way > 0.5 * (bar.start_seconds - before):
        return "transfer", f"{last.layer or 'a tensor'} is on its way from {source}"
    return "wait", f"{source} has not made what it works on next"
