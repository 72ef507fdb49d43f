"""Changes of a request that may help against what limits its plan: a function for each kind of change.

A change leaves the job as it is: the model, the batch, and what is learned from it. Only the optimizer that needs less
memory learns otherwise, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import plural
from partitioner.moves.machines import fewer_limits, more_devices, other_hardware, other_links
from partitioner.report.limit_kinds import LimitKind
from partitioner.report.limits import limits
from partitioner.report.microbatches import count_microbatches
from partitioner.report.verdict import joined

MOST_CANDIDATES = 8
"""Each takes as long as the plan did."""

_CHOICES = ("strategy", "replicas", "microbatches", "schedule", "recompute")
_CONSTRAINTS = {"pins": "the pins", "forbid": "what is forbidden", "colocate": "what is kept together"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change of a request.

    Attributes:
        change: In words.
        request: The changed arguments of `plan`, by name.
    """

    change: str
    request: dict[str, Any]


Change = tuple[str, dict[str, Any]]
"""In words, and the arguments that change; None takes an argument out."""


def candidates(plan: PlanDocument) -> tuple[Candidate, ...]:
    """Changes against what limits the plan, most promising first: at most `MOST_CANDIDATES`, no two alike."""
    found: list[Candidate] = []
    for make in _makers(plan):
        for words, changes in make(plan):
            request = changed(plan.request, changes)
            if request != plan.request and all(request != other.request for other in found):
                found.append(Candidate(change=words, request=request))
    return tuple(found[:MOST_CANDIDATES])


def changed(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with some changed; None takes one out."""
    kept = {name: value for name, value in given.items() if name not in changes}
    return dict(sorted((kept | {name: value for name, value in changes.items() if value is not None}).items()))


def _makers(plan: PlanDocument) -> Iterator[Callable[[PlanDocument], Iterator[Change]]]:
    """First what goes against the limit, then what costs nothing, then what goes against the other limits."""
    kinds = [limit.kind for limit in limits(plan)]
    yield from _AGAINST[kinds[0]] if kinds else ()
    yield from (_free_choices, _without_constraints)
    for kind in kinds[1:]:
        yield from _AGAINST[kind]


def _free_choices(plan: PlanDocument) -> Iterator[Change]:
    """Leave to the planner what the request fixes: all of it, and each alone."""
    fixed = [name for name in _CHOICES if plan.request.get(name, "auto") != "auto"]
    names = {"replicas": "the number of replicas", "microbatches": "the number of microbatches"}
    if len(fixed) > 1:
        yield f"{joined(fixed)} left to the planner", dict.fromkeys(fixed)
    if "strategy" in fixed and "replicas" in fixed:
        fixed.remove("replicas")  # `mixed` asks for their number
    for name in fixed:
        taken_out = ("strategy", "replicas") if name == "strategy" else (name,)
        yield f"{names.get(name, f'the {name}')} left to the planner", dict.fromkeys(taken_out)


def _without_constraints(plan: PlanDocument) -> Iterator[Change]:
    for name, words in _CONSTRAINTS.items():
        if plan.request.get(name):
            yield f"without {words}", {name: None}


def _more_microbatches(plan: PlanDocument) -> Iterator[Change]:
    """Twice and four times as many, where the request fixes their number."""
    count = plan.request.get("microbatches", "auto")
    for more in (2, 4):
        if count != "auto" and plan.model.batch_size >= more * count * plan.num_replicas:
            yield count_microbatches(more * count), {"microbatches": more * count}


def _fewer_microbatches(plan: PlanDocument) -> Iterator[Change]:
    """Half as many: fewer transfers, each with its latency."""
    count = plan.request.get("microbatches", "auto")
    if count != "auto" and count > 1:
        yield count_microbatches(count // 2), {"microbatches": count // 2}


def _other_replicas(plan: PlanDocument) -> Iterator[Change]:
    """Half and twice as many on the same devices."""
    count = plan.request.get("replicas")
    if isinstance(count, int) and count > 1:
        for other in (count // 2, 2 * count):
            yield plural(other, "replica"), {"replicas": other}


def _fewer_slots(plan: PlanDocument) -> Iterator[Change]:
    if plan.model.training and any(use.slot_bytes for use in plan.memory):
        yield "the optimizer sgd, which keeps no slots but learns otherwise", {"optimizer": "sgd"}


_AGAINST: Mapping[LimitKind, tuple[Callable[[PlanDocument], Iterator[Change]], ...]] = {
    LimitKind.COMPUTE: (more_devices, other_hardware),
    LimitKind.IMBALANCE: (_free_choices, _without_constraints, _more_microbatches, more_devices),
    LimitKind.LINK: (other_links, _fewer_microbatches, _other_replicas),
    LimitKind.BUBBLE: (_more_microbatches, _free_choices, _other_replicas),
    LimitKind.MEMORY: (fewer_limits, _free_choices, more_devices, other_hardware, _fewer_slots),
}
"""What may help against each kind of limit, most promising first."""
