"""The bottleneck of the step in the report: what limits it, and the idle time of devices."""

from __future__ import annotations

from partitioner.ir.plan import PlanDocument
from partitioner.report.limits import limits
from partitioner.report.microbatches import idle_sentence


def bottleneck_sentences(plan: PlanDocument) -> tuple[str, ...]:
    """What limits the step, and how much of it devices idle."""
    return tuple(filter(None, (*(limit.sentence for limit in limits(plan)[:1]), idle_sentence(plan))))
