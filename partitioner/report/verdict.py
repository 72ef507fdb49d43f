"""The reasons for the strategy, in words: the plan against its alternatives, and the argument that forces another."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.devices import few_names
from partitioner.ir.plan import Baseline, Objective, PlanDocument, Strategy, Updates
from partitioner.ir.units import format_ratio, format_seconds, plural
from partitioner.report.microbatches import count_microbatches, passing
from partitioner.spelling import argument


def headline(plan: PlanDocument) -> str:
    """The strategy and its shape: `layer-split on CPU:0 and CPU:1, 2 stages (chosen by auto)`."""
    parts = [f"{plan.strategy} on {short_names(plan.used_devices)}"]
    if plan.num_replicas > 1:
        shared = list(dict.fromkeys(stage.device for stage in plan.stages if len(plan.replicas_of(stage)) > 1))
        parts.append(plural(plan.num_replicas, "replica") + (f" that share {short_names(shared)}" if shared else ""))
    if plan.num_stages > 1:
        parts.append(plural(plan.num_stages, "stage"))
    if passed := passing(plan):
        parts.append(passed)
    if plan.updates == Updates.ASYNC:
        parts.append(f"asynchronous updates, staleness at most {plan.max_staleness}")
    chosen = "chosen by auto" if plan.requested_strategy is Strategy.AUTO else "as asked for"
    return f"{', '.join(parts)} ({chosen})"


def reasons(plan: PlanDocument) -> tuple[str, ...]:
    """Sentences with the reasons for the plan and their numbers, most important first."""
    about_devices = _single_reasons(plan) if plan.strategy is Strategy.SINGLE else _split_reasons(plan)
    return (*about_devices, *_microbatch_reasons(plan), *_order_reasons(plan))


def short_names(devices: Sequence[str]) -> str:
    """The devices as people read them: `GPU:0, GPU:1 and GPU:2`; many of them as ranges."""
    return joined(few_names(devices))


def joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def is_single(baseline: Baseline) -> bool:
    """Whether the baseline is one device doing everything (`single-device`, `single-device GPU:0`)."""
    return baseline.name.startswith("single")


def _single_reasons(plan: PlanDocument) -> list[str]:
    if len(plan.devices) == 1:
        return ["only one device is given"]
    if plan.requested_strategy is not Strategy.AUTO:
        faster = [b for b in _alternatives(plan) if b.fits and b.step_seconds < plan.predicted.step_seconds]
        return [f"a split would be faster: {_compared(plan, faster)}"] if faster else []
    others = _alternatives(plan)
    is_fastest = not any(other.fits and other.step_seconds < plan.predicted.step_seconds for other in others)
    why = {
        Objective.THROUGHPUT: f"one device is {'fastest' if is_fastest else 'nearly as fast as more'}",
        Objective.LATENCY: f"one device has {'' if is_fastest else 'nearly '}the shortest latency",
        Objective.MEMORY: "no split needs less memory on its largest device",
    }[plan.objective]
    step = format_seconds(plan.predicted.step_seconds)
    lines = [
        f"{why}: a step takes {step} on {short_names(plan.used_devices)}",
        f"to split it all the same: {argument('strategy', str(Strategy.LAYER_SPLIT))}",
    ]
    return [*lines, f"the alternatives: {_compared(plan, others)}"] if others else lines


def _split_reasons(plan: PlanDocument) -> list[str]:
    singles = [baseline for baseline in plan.baselines if is_single(baseline)]
    fitting = [baseline for baseline in singles if baseline.fits]
    if not singles:
        return []
    if not fitting:
        return ["the model does not fit on one device"]
    best = min(fitting, key=lambda baseline: baseline.step_seconds)
    ratio = format_ratio(plan.predicted.step_seconds, best.step_seconds)
    step, alone = format_seconds(plan.predicted.step_seconds), format_seconds(best.step_seconds)
    if best.step_seconds >= plan.predicted.step_seconds:
        return [f"{ratio} than one device: {step} a step against {alone}"] if ratio != "same" else []
    lines = [f"one device alone would be faster: {alone} a step against {step}, so this plan is {ratio}"]
    if plan.requested_strategy is not Strategy.AUTO:
        lines.append(f"to run on one device: {argument('strategy', str(Strategy.SINGLE))}")
    elif plan.objective is not Objective.THROUGHPUT:
        lines.append(f"the objective is {plan.objective}, not throughput")
    return lines


def _microbatch_reasons(plan: PlanDocument) -> list[str]:
    """The plan's microbatches against one microbatch through as many stages."""
    shape = 1, plan.num_stages
    in_one_piece = [
        candidate for candidate in plan.considered if (candidate.num_microbatches, candidate.num_stages) == shape
    ]
    if plan.num_microbatches == 1 or not in_one_piece:
        return []
    fitting = [candidate.step_seconds for candidate in in_one_piece if candidate.fits]
    if not fitting:
        return ["the batch in one piece does not fit"]
    ratio = format_ratio(plan.predicted.step_seconds, min(fitting))
    comparison = "as fast as" if ratio == "same" else f"{ratio} than"
    return [
        f"{count_microbatches(plan.num_microbatches)} are {comparison} the batch in one piece: "
        f"{format_seconds(plan.predicted.step_seconds)} a step against {format_seconds(min(fitting))}"
    ]


def _order_reasons(plan: PlanDocument) -> list[str]:
    if not plan.delays_gradients:
        return []
    return ["gradients of weights come after what other devices wait for"]


def _alternatives(plan: PlanDocument) -> list[Baseline]:
    return [baseline for baseline in plan.baselines if not is_single(baseline)]


def _compared(plan: PlanDocument, baselines: Sequence[Baseline]) -> str:
    return ", ".join(
        f"{baseline.name} {format_seconds(baseline.step_seconds)} "
        f"({format_ratio(baseline.step_seconds, plan.predicted.step_seconds)}"
        f"{'' if baseline.fits else ', does not fit'})"
        for baseline in baselines
    )
