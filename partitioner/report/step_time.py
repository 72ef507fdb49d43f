"""The step time, beside the plan's baselines and the other candidates of its search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group
from rich.table import Table
from rich.text import Text

from partitioner.ir.plan import Baseline, PlanDocument
from partitioner.ir.units import format_bytes, format_percent, format_ratio, format_seconds
from partitioner.report.layout import Section, fits, name, table
from partitioner.report.microbatches import best_candidates, idle_sentence, is_chosen
from partitioner.report.verdict import is_single

_MAX_BASELINES = 4


def step_time_section(plan: PlanDocument) -> Section:
    """The plan and a few baselines, equal baselines together; the fastest single device is always among them."""
    latency = format_seconds(plan.predicted.latency_seconds)
    baselines = _alike_together(plan.baselines)
    shown = _fastest(baselines, _MAX_BASELINES if len(baselines) <= _MAX_BASELINES else _MAX_BASELINES - 1)
    body = table("", ">step", "against this plan", "memory", one_line=True)
    _add_rows(body, plan, shown, one_line=True)
    if len(shown) < len(baselines):
        body.add_row(name(f"{len(baselines) - len(shown)} more in the verbose report", one_line=True))
    return Section(title=f"step time (simulated; latency of one input {latency})", body=body)


def all_step_times_section(plan: PlanDocument) -> Section:
    """The plan and every baseline."""
    body = table("", ">step", "against this plan", "memory")
    _add_rows(body, plan, plan.baselines, one_line=False)
    facts = [f"latency of one input {format_seconds(plan.predicted.latency_seconds)}"]
    if len(plan.used_devices) > 1:
        facts.append(f"bottleneck stage {plan.predicted.bottleneck_stage}")
        facts.append(f"devices idle {format_percent(plan.predicted.bubble_fraction)} of the step")
    return Section(title="step time (estimated)", body=Group(body, Text(f"simulated; {', '.join(facts)}")))


def _add_rows(body: Table, plan: PlanDocument, baselines: Sequence[Baseline], *, one_line: bool) -> None:
    step_seconds, peak_bytes = plan.predicted.step_seconds, plan.predicted.peak_bytes
    does_fit = all(peak_bytes.get(device.name, 0) <= device.memory_bytes for device in plan.devices)
    body.add_row(Text("this plan", style="bold"), format_seconds(step_seconds), "", fits(does_fit))
    for baseline in baselines:
        ratio = format_ratio(baseline.step_seconds, step_seconds)
        label = name(baseline.name, one_line=one_line)
        body.add_row(label, format_seconds(baseline.step_seconds), ratio, fits(baseline.fits))


def _alike_together(baselines: Sequence[Baseline]) -> list[Baseline]:
    """Baselines with single devices of the same step time merged, as for devices of one kind."""
    alike: dict[tuple[object, ...], list[Baseline]] = {}
    for baseline in baselines:
        kind = "single-device" if is_single(baseline) else baseline.name
        alike.setdefault((kind, format_seconds(baseline.step_seconds), baseline.fits), []).append(baseline)
    return [
        same[0] if len(same) == 1 else replace(same[0], name=f"single-device (any of {len(same)})")
        for same in alike.values()
    ]


def _fastest(baselines: Sequence[Baseline], count: int) -> list[Baseline]:
    """The `count` fastest baselines, the fastest single device among them, in the plan's order."""

    def rank(baseline: Baseline) -> tuple[bool, bool, float]:
        return baseline is not single, not baseline.fits, baseline.step_seconds

    singles = sorted(filter(is_single, baselines), key=lambda baseline: (not baseline.fits, baseline.step_seconds))
    single = singles[0] if singles else None
    chosen = sorted(baselines, key=rank)[:count]
    return [baseline for baseline in baselines if any(baseline is other for other in chosen)]


def candidates_section(plan: PlanDocument) -> Section:
    """The other numbers of stages and microbatches that were considered."""
    body = table(">stages", ">microbatches", "schedule", ">recomputed", ">step", ">largest peak", "memory", "")
    for candidate in best_candidates(plan):
        body.add_row(
            f"{candidate.num_stages}",
            f"{candidate.num_microbatches}",
            Text(candidate.schedule),
            f"{candidate.num_recomputed}",
            format_seconds(candidate.step_seconds),
            format_bytes(candidate.largest_peak_bytes),
            fits(candidate.fits),
            Text("this plan" if is_chosen(plan, candidate) else "", style="bold"),
        )
    sentence = idle_sentence(plan)
    return Section(title="microbatches (estimated)", body=Group(body, Text(sentence)) if sentence else body)
