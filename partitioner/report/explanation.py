"""The explanation of a plan as a value: what limits its step, what simpler plans take, and which moves gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from partitioner.ir.json import to_json
from partitioner.ir.plan import Baseline, Objective, PlanDocument, Strategy, WhatIf
from partitioner.ir.units import format_ratio, format_seconds
from partitioner.report.explanation_text import explanation_text
from partitioner.report.limit_kinds import Limit
from partitioner.report.limits import limits
from partitioner.report.verdict import headline, is_single

SCHEMA = "partition-explanation/1"
AS_GOOD = 0.01
"""Plans whose objectives differ by less than this share are as good as each other, and such a gain is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of the request that was planned, and gains.

    Attributes:
        change: In words.
        before: The objective of the plan, in `unit`.
        after: The objective with the change.
        unit: `s` or `bytes`.
        gain: The share of the objective that it saves.
        command: The line for the shell, or the call in Python, that carries it out.
        request: The arguments of that command, by name.
    """

    change: str
    before: float
    after: float
    unit: str
    gain: float
    command: str
    request: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What limits a plan, in words and figures.

    Attributes:
        model: The model's name, and where it came from.
        plan: Strategy and shape of the plan.
        objective: The objective of the plan: seconds of a step, or bytes of the largest peak, in `unit`.
        unit: `s` or `bytes`.
        limits: What takes a part of the step; the first limits it.
        simpler: When one device, or plain data parallelism, would be as good.
        moves: The best moves, best first; each was planned.
        others: Changes that were planned and gain nothing, gain less than those, or could not be planned.
        not_planned: Why there are no moves; empty if some were looked for.
        command: The command that plans moves, if these were not.
    """

    model: str
    plan: str
    objective: float
    unit: str
    limits: tuple[Limit, ...]
    simpler: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    others: tuple[WhatIf, ...] = ()
    not_planned: str = ""
    command: str = ""
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The explanation as JSON: sorted keys, two spaces per level."""
        return to_json(self, indent=2)

    def to_text(self) -> str:
        """The explanation as the command line prints it; commands are on lines of their own, however long."""
        return explanation_text(self)


def explain_plan(plan: PlanDocument, *, not_planned: str = "", command: str = "") -> Explanation:
    """The explanation in words alone, with the reason why there are no moves and the command that plans some."""
    before, unit = objective_of(plan)
    source = f" ({plan.model.source})" if plan.model.source else ""
    return Explanation(
        model=f"{plan.model.name}{source}",
        plan=headline(plan),
        objective=before,
        unit=unit,
        limits=limits(plan),
        simpler=tuple(_simpler(plan)),
        not_planned=not_planned,
        command=command,
    )


def objective_of(plan: PlanDocument) -> tuple[float, str]:
    """The objective that a plan reaches, and its unit."""
    if plan.objective is Objective.MEMORY:
        return float(max(plan.predicted.peak_bytes.values(), default=0)), "bytes"
    return plan.predicted.step_seconds, "s"


def _simpler(plan: PlanDocument) -> Iterator[str]:
    """Whether one device, and plain data parallelism, are as good, and what would make them so."""
    if plan.strategy is Strategy.SINGLE:
        yield "one device: this plan is on one device"
    else:
        yield _compared(plan, "one device", [b for b in plan.baselines if is_single(b)])
    if plan.strategy is Strategy.MIRRORED:
        yield "plain data parallelism: this plan is"
    elif len(plan.devices) > 1:
        yield _compared(plan, "plain data parallelism", [b for b in plan.baselines if b.name.startswith("mirrored")])


def _compared(plan: PlanDocument, name: str, baselines: Sequence[Baseline]) -> str:
    best = min(baselines, key=lambda baseline: (not baseline.fits, baseline.step_seconds), default=None)
    if best is None:
        return f"{name}: was not compared; the strategy auto compares it where it gives the same numbers"
    step, other = plan.predicted.step_seconds, best.step_seconds
    took = f"{name}: {format_seconds(other)} a step"
    if not best.fits:
        return f"{took} against {format_seconds(step)}, but does not fit: as good only with more memory"
    if abs(other - step) <= AS_GOOD * step:
        return f"{took}: as good as this plan"
    if other < step:
        but = ", but would change the numbers" if _changes_numbers(plan, best) else ""
        return f"{took}: better than this plan, which takes {format_seconds(step)}{but}"
    more = format_seconds(other - step)
    return (
        f"{took} ({format_ratio(other, step)}): as good only where this plan waited {more} longer for links and others"
    )


def _changes_numbers(plan: PlanDocument, baseline: Baseline) -> bool:
    """Whether a faster baseline was left out as its replicas would change the results, which a note says."""
    is_replicated = not is_single(baseline)
    return is_replicated and any("but would change the numbers" in note for note in plan.notes)
