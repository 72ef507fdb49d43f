"""The kinds of limits of a step: a function for each tells its share, and what is responsible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from partitioner.ir.devices import short_name
from partitioner.ir.plan import Baseline, Considered, DeviceMemory, Objective, PlanDocument
from partitioner.ir.units import format_bytes, format_bytes_of, format_percent, format_seconds, plural
from partitioner.report.microbatches import count_microbatches
from partitioner.report.step_figures import StepFigures
from partitioner.report.verdict import joined

MOST_NAMED = 3


class LimitKind(StrEnum):
    """The kinds of limits of a step."""

    COMPUTE = "compute"
    IMBALANCE = "imbalance"
    LINK = "link"
    BUBBLE = "bubble"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Something that takes a part of the step.

    Attributes:
        kind: What it is.
        share: Its share of the step's time, at most 1.
        sentence: That it limits the step, with figures.
        devices: The devices it is about, as people name them.
        layers: The layers that are responsible, most important first; at most three.
        tensors: The tensors that are responsible, with their sizes; at most three.
    """

    kind: LimitKind
    share: float
    sentence: str
    devices: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


def compute(step: StepFigures) -> Limit:
    """What the devices compute on average."""
    devices = tuple(map(short_name, step.busy))
    if len(devices) == 1:
        seconds = f"its ops take {format_seconds(step.mean)} of the {format_seconds(step.seconds)} step"
        sentence = f"{devices[0]} does all the work: {seconds}"
        if step.plan.num_replicas > 1:
            sentence = f"compute limits the step: each replica computes {step.of_step(step.mean)}"
    else:
        sentence = f"compute limits the step: devices compute {step.of_step(step.mean)} on average"
    return Limit(
        kind=LimitKind.COMPUTE,
        share=step.share(step.mean),
        sentence=sentence,
        devices=devices,
        layers=step.layers(),
    )


def imbalance(step: StepFigures) -> Limit:
    """What the busiest device computes beyond the others."""
    device, most = step.busiest, step.busy[step.busiest]
    stages = [f"{stage.index}" for stage in step.plan.stages_of(0) if stage.device == device]
    named = f"stage{'s' if len(stages) > 1 else ''} {joined(stages)} on {short_name(device)}"
    return Limit(
        kind=LimitKind.IMBALANCE,
        share=step.share(most - step.mean),
        sentence=f"imbalance limits the step: {named} computes {step.of_step(most)}, "
        f"devices on average {format_seconds(step.mean)}",
        devices=(short_name(device),),
        layers=step.layers(device),
    )


def link(step: StepFigures) -> Limit | None:
    """What transfers on the critical path take."""
    if not step.waited_for:
        return None
    seconds: dict[tuple[str, str, str, str], float] = {}
    sizes: dict[tuple[str, str, str, str], int] = {}
    for sent in step.waited_for:
        key = sent.op, sent.layer, sent.source, sent.target
        seconds[key] = seconds.get(key, 0.0) + sent.end_seconds - sent.start_seconds
        sizes[key] = sizes.get(key, 0) + sent.size_bytes
    longest = sorted(seconds, key=lambda key: -seconds[key])
    _, _, source, target = longest[0]
    name = _link_between(step.plan, source, target)
    return Limit(
        kind=LimitKind.LINK,
        share=step.share(step.link_seconds),
        sentence=f"{name} limits the step: devices wait {step.of_step(step.link_seconds)} for tensors on their way",
        devices=tuple(dict.fromkeys(short_name(device) for device in (source, target) if device)),
        layers=tuple(dict.fromkeys(layer for _, layer, _, _ in longest if layer))[:MOST_NAMED],
        tensors=tuple(
            f"{op or 'gradients, to be summed over replicas'}: {format_bytes(sizes[key])} from {short_name(start)}"
            f"{f' to {short_name(end)}' if end else ''}, {format_seconds(seconds[key])}"
            for key in longest[:MOST_NAMED]
            for op, _, start, end in [key]
        ),
    )


def _link_between(plan: PlanDocument, source: str, target: str) -> str:
    """`the link pcie4`; of a sum of gradients the slowest from the device to any other."""
    joining = [
        link
        for link in plan.links
        if any(pair[0] == source and target in ("", pair[1]) for pair in link.pairs) or not link.pairs
    ]
    slowest = min(joining, key=lambda link: link.bandwidth_bytes_per_second, default=None)
    return f"the link {slowest.name}" if slowest else "a link"


def bubble(step: StepFigures) -> Limit:
    """What the busiest device waits for other reasons."""
    idle = step.seconds - step.busy[step.busiest] - step.link_seconds
    has_sends = not step.plan.transfers and any(stage.send_bytes for stage in step.plan.stages)
    others = "others and links" if has_sends else "others"  # plans of earlier versions have no transfers
    return Limit(
        kind=LimitKind.BUBBLE,
        share=step.share(idle),
        sentence=f"the bubble limits the step: {short_name(step.busiest)} waits {step.of_step(idle)} for {others}",
        devices=(short_name(step.busiest),),
        layers=step.layers(step.busiest),
    )


def memory(step: StepFigures) -> Limit | None:
    """What a candidate that does not fit would have saved; all that the objective memory costs."""
    plan, is_objective = step.plan, step.plan.objective is Objective.MEMORY
    faster = dict(_faster(plan, of_any_size=is_objective))
    if not faster and not is_objective:
        return None
    said = "memory limits the step" + (", as the objective" if is_objective else "")
    best = min(faster, key=lambda name: faster[name], default="")
    share = step.share(step.seconds - faster[best]) if best else 0.0
    if best:
        fitting = "" if is_objective else " and does not fit"
        said += f": {best} would take {format_seconds(faster[best])} ({format_percent(share)} less){fitting}"
    fullest = max(plan.memory, key=_fullness, default=None)
    if fullest is None:  # a plan of an earlier version
        return Limit(kind=LimitKind.MEMORY, share=share, sentence=said)
    held = format_bytes_of(fullest.peak_bytes, fullest.peak_bytes + fullest.headroom_bytes)
    largest = fullest.largest[:MOST_NAMED]
    return Limit(
        kind=LimitKind.MEMORY,
        share=share,
        sentence=f"{said}; {short_name(fullest.device)} holds {held}",
        devices=(short_name(fullest.device),),
        layers=tuple(dict.fromkeys(tensor.layer for tensor in largest if tensor.layer)),
        tensors=tuple(f"{tensor.op}: {format_bytes(tensor.size_bytes)}" for tensor in largest),
    )


def _faster(plan: PlanDocument, *, of_any_size: bool) -> Iterator[tuple[str, float]]:
    """Candidates and simple plans that take less time, by name; only those that do not fit unless of any size."""
    for figure in (*plan.baselines, *plan.considered):
        if figure.step_seconds < plan.predicted.step_seconds and (of_any_size or not figure.fits):
            yield figure.name if isinstance(figure, Baseline) else _title(figure), figure.step_seconds


def _title(candidate: Considered) -> str:
    """`2 stages in 8 microbatches, schedule 1f1b`."""
    kept = ", no stage recomputed" if not candidate.num_recomputed else ""
    stages, microbatches = plural(candidate.num_stages, "stage"), count_microbatches(candidate.num_microbatches)
    return f"{stages} in {microbatches}, schedule {candidate.schedule}{kept}"


def _fullness(use: DeviceMemory) -> float:
    return use.peak_bytes / max(use.peak_bytes + use.headroom_bytes, 1)


KINDS: tuple[Callable[[StepFigures], Limit | None], ...] = (compute, imbalance, link, bubble, memory)
"""Every kind; a new one is a member of `LimitKind` and a function here."""
