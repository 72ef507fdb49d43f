"""Explain why no placement of a cost graph is allowed, and name changes that allow a placement; each was tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from partitioner.constraints.changes import changes_that_help, fewest_more_devices
from partitioner.constraints.conflicts import overfull, smallest_conflict
from partitioner.cost_graphs.request import CostGraphRequest
from partitioner.cost_graphs.solver.client import solve
from partitioner.cost_graphs.solver.problem import LoadDevice
from partitioner.cost_graphs.solver.start import first_fit
from partitioner.deadline import CHANGED_GRAPH_SECONDS, EXPLANATION_SECONDS, Deadline
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import short_name
from partitioner.ir.requirements import Requirement
from partitioner.spelling import argument, listed

_HALVINGS = 12

_CONTIGUOUS = argument("contiguous")
_Fact = Requirement | LoadDevice | str


def refuse_overfull(request: CostGraphRequest) -> None:
    """Refuse requests that are infeasible by simple counts.

    Raises:
        InfeasibleError: All nodes or a group exceed the memory, or nodes need a CPU and there is none.
    """
    graph, places = request.graph, request.places
    only_on_cpus = [node.id for node in graph.nodes if node.needs_cpu]
    if only_on_cpus and not any(place.is_cpu for place in places):
        raise InfeasibleError(
            f"{len(only_on_cpus)} nodes run on CPUs only, and there is none: {listed(only_on_cpus)}",
            help=f"add a CPU: {argument('devices', ['GPU:0', 'CPU:0'])}",
        )
    limited = [place.capacity_bytes for place in places if place.capacity_bytes is not None]
    if len(limited) < len(places):
        return
    needed = math.ceil(math.fsum(node.memory_bytes for node in graph.nodes))
    if needed > sum(limited):
        raise InfeasibleError(
            "the cost graph does not fit on the given devices",
            notes=[f"needs {needed:,} bytes", f"have  {sum(limited):,} bytes on {len(limited)} devices"],
            help=_changes_that_help(request, [], Deadline.after(EXPLANATION_SECONDS)),
        )
    groups: dict[tuple[str, str], list[float]] = {}
    for node in graph.nodes:
        key = ("node", node.id) if node.group is None else ("nodes of group", node.group)
        groups.setdefault(key, []).append(node.memory_bytes)
    (what, which), sizes = max(groups.items(), key=lambda entry: math.fsum(entry[1]))
    if math.fsum(sizes) > max(limited):
        raise InfeasibleError(
            f"{what} {which} must be on one device, and none has room",
            notes=[f"needs {math.ceil(math.fsum(sizes)):,} bytes", f"the largest device has {max(limited):,} bytes"],
            help=f"raise {argument('memory_limit')}, or add a CPU, which has no limit",
        )


def explained(request: CostGraphRequest) -> InfeasibleError:
    """The error for an infeasible request: a smallest set of conflicting facts, and changes that resolve it."""
    deadline = Deadline.after(min(EXPLANATION_SECONDS, request.time_limit))
    contiguous = [_CONTIGUOUS] if request.contiguous else []
    limited = [place for place in request.places if place.capacity_bytes is not None]
    facts: list[_Fact] = [*request.requirements, *contiguous, *limited]
    conflict = smallest_conflict(facts, lambda some: deadline.is_over or _can_hold(request, some))
    needed = math.ceil(math.fsum(node.memory_bytes for node in request.graph.nodes))
    notes = [f"the nodes hold {needed:,} bytes"]
    notes += [_in_words(fact) for fact in conflict]
    pieces = " in contiguous pieces" if _CONTIGUOUS in conflict else ""
    memory = " within the memory of the devices" if any(isinstance(fact, LoadDevice) for fact in conflict) else ""
    return InfeasibleError(
        f"no placement keeps to what is asked{memory}{pieces}",
        notes=notes,
        help=_changes_that_help(
            request,
            [fact for fact in conflict if not isinstance(fact, LoadDevice)],
            Deadline.after(EXPLANATION_SECONDS),
        ),
    )


def _in_words(fact: _Fact) -> str:
    if isinstance(fact, LoadDevice):
        return f"{short_name(fact.name)} holds at most {fact.capacity_bytes:,} bytes"
    return fact.text if isinstance(fact, Requirement) else fact


def _changes_that_help(request: CostGraphRequest, droppable: Sequence[_Fact], deadline: Deadline) -> str | None:
    """Changes under which there is a placement, in words; None if none was found in time."""
    helps = [*changes_that_help(_changes(request, droppable), _is_placed, deadline)]
    if extra := _missing_bytes(request, deadline):
        helps.append(f"{extra:,} bytes more on each device")
    if not all(place.is_cpu for place in request.places):
        more = CostGraphRequest.with_another_accelerator
        if count := fewest_more_devices(request, more, _is_placed, deadline):
            helps.append("add a device" if count == 1 else f"add {count} devices")
    return ", or ".join(helps) or None


def _changes(request: CostGraphRequest, droppable: Sequence[_Fact]) -> Iterator[tuple[str, CostGraphRequest]]:
    for fact in droppable:
        if isinstance(fact, Requirement):
            left = tuple(requirement for requirement in request.requirements if requirement != fact)
            yield f"leave out {fact.text}", replace(request, requirements=left)
        else:
            yield f"leave out {fact}", replace(request, contiguous=False)


def _missing_bytes(request: CostGraphRequest, deadline: Deadline) -> int:
    """The least memory to add to each limited device, to a few digits; 0 if more memory does not help."""

    def with_more(extra: int) -> CostGraphRequest:
        sizes = [None if place.capacity_bytes is None else place.capacity_bytes + extra for place in request.places]
        places = zip(request.places, sizes, strict=True)
        return replace(request, places=tuple(replace(place, capacity_bytes=size) for place, size in places))

    low, high = 0, math.ceil(math.fsum(node.memory_bytes for node in request.graph.nodes))
    if not _is_placed(with_more(high)):
        return 0
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if high - low <= 1 or deadline.is_over:
            break
        if _is_placed(with_more(middle)):
            high = middle
        else:
            low = middle
    return high


def _can_hold(request: CostGraphRequest, facts: Sequence[_Fact]) -> bool:
    """Whether a placement may be allowed under some of the facts; False only if it is proved infeasible."""
    kept = [fact.name for fact in facts if isinstance(fact, LoadDevice)]
    places = [place if place.name in kept else replace(place, capacity_bytes=None) for place in request.places]
    left = tuple(fact for fact in facts if isinstance(fact, Requirement))
    some = replace(request, places=tuple(places), requirements=left, contiguous=_CONTIGUOUS in facts)
    return _status(some) != "infeasible"


def _is_placed(request: CostGraphRequest) -> bool:
    return _status(request) in ("optimal", "feasible")


def _status(request: CostGraphRequest) -> str:
    """Status of the search for any allowed placement: all costs are 0."""
    graph = request.graph
    free = replace(
        graph,
        nodes=tuple(replace(node, accelerator_cost=0.0, cpu_cost=0.0) for node in graph.nodes),
        values=tuple(replace(value, cost=0.0) for value in graph.values),
    )
    try:
        problem = replace(request, graph=free, time_limit=CHANGED_GRAPH_SECONDS, work_limit=None).built().problem
    except InfeasibleError:
        return "infeasible"
    everywhere = frozenset(range(len(problem.devices)))
    capacities = [math.inf if place.capacity_bytes is None else place.capacity_bytes for place in problem.devices]
    sizes = [item.memory_bytes for item in problem.items]
    if overfull(sizes, [everywhere - item.barred for item in problem.items], capacities) is not None:
        return "infeasible"
    # If a simple start exists, no solver process is needed.
    return "feasible" if first_fit(problem) is not None else solve(problem).answer.status
