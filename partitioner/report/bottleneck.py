"""The bottleneck of the step in words: a stage and its device, or a link; and the idle time of devices."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import format_bandwidth, format_bytes, format_percent, format_seconds
from partitioner.report.microbatches import idle_sentence
from partitioner.report.verdict import short_names

_NO_COPY_BANDWIDTH = 1e15  # what `format_bandwidth` calls no copy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sending:
    """Bytes that a device sends in a step over the slowest used link, and the most seconds that this takes."""

    link: str
    bandwidth_bytes_per_second: float
    device: str
    sent_bytes: int
    seconds: float


def bottleneck_sentences(plan: PlanDocument) -> tuple[str, ...]:
    """Which stage, device or link limits the step, and how much of it devices idle."""
    step_seconds = plan.predicted.step_seconds
    computes = _compute_seconds(plan)
    if len(computes) < 2:
        ((device, seconds),) = computes.items() or [("", 0.0)]
        share = f"its ops take {format_seconds(seconds)} of the {format_seconds(step_seconds)} step"
        return (f"{short_name(device)} does all the work: {share}",) if device else ()
    limits = [_device_sentence(plan, computes)]
    sending = _longest_sending(plan)
    if sending is not None and sending.seconds > max(computes.values()):
        limits = [_link_sentence(sending, max(computes.values()))]
    return tuple(filter(None, (*limits, idle_sentence(plan))))


def _compute_seconds(plan: PlanDocument) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for stage in plan.stages:
        seconds[stage.device] = seconds.get(stage.device, 0.0) + stage.compute_seconds
    return seconds


def _device_sentence(plan: PlanDocument, computes: dict[str, float]) -> str:
    step_seconds, index = plan.predicted.step_seconds, plan.predicted.bottleneck_stage
    # Of the replicas of the stage, those on the device that computes longest.
    peers = [stage.device for stage in plan.stages if stage.index == index] or list(computes)
    seconds = max(computes[device] for device in peers)
    devices = [device for device in dict.fromkeys(peers) if computes[device] >= 0.999 * seconds]
    named = f"stage {index} on {short_names(devices)}"
    what = "the device computes" if len(devices) == 1 else "each device computes"
    share = format_percent(min(seconds / step_seconds, 1.0)) if step_seconds else "0 %"
    return f"{named} limits the step: {what} {format_seconds(seconds)} of {format_seconds(step_seconds)} ({share})"


def _longest_sending(plan: PlanDocument) -> _Sending | None:
    """The device that sends most, over the slowest used link; None where no link carries bytes."""
    used = [link for link in plan.links if link.sent_bytes and link.bandwidth_bytes_per_second < _NO_COPY_BANDWIDTH]
    if not used or not plan.stages:
        return None
    link = min(used, key=lambda link: link.bandwidth_bytes_per_second)
    stage = max(plan.stages, key=lambda stage: stage.send_bytes)
    sent_bytes = min(stage.send_bytes, link.sent_bytes)
    return _Sending(
        link=link.name,
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second,
        device=stage.device,
        sent_bytes=sent_bytes,
        seconds=sent_bytes / link.bandwidth_bytes_per_second,
    )


def _link_sentence(sending: _Sending, compute_seconds: float) -> str:
    return (
        f"the link {sending.link} limits the step: {format_bytes(sending.sent_bytes)} from "
        f"{short_name(sending.device)} take up to {format_seconds(sending.seconds)} at "
        f"{format_bandwidth(sending.bandwidth_bytes_per_second)}; no device computes for more than "
        f"{format_seconds(compute_seconds)}"
    )
