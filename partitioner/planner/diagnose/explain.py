"""Why nothing fits, and the smallest changes that help: each is planned before it is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from partitioner.constraints.changes import changes_that_help, fewest_more_devices
from partitioner.constraints.conflicts import overfull, smallest_conflict
from partitioner.deadline import CHANGED_PLAN_SECONDS, EXPLANATION_SECONDS, PACKING_SECONDS, Deadline
from partitioner.errors import InfeasibleError, PartitionError
from partitioner.ir.devices import listed_devices
from partitioner.ir.plan import Objective
from partitioner.ir.problem import Item, PlacementProblem, ProblemDevice, ProblemLink
from partitioner.ir.requirements import Requirement
from partitioner.ir.units import format_bytes
from partitioner.planner.diagnose.shortfall import described
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.item_bytes import lasting_item_bytes
from partitioner.planner.placement.solve.client import solve
from partitioner.spelling import listed

_MIB = 2**20
_NO_LIMIT = 2**60
# Of a limit, what is tried besides: with more memory other cuts look fast, and peaks may be 3 % over their estimates.
_SPARE = 0.03


def explained(
    error: OutOfMemoryError,
    planner: LayoutPlanner,
    replan: Callable[[LayoutPlanner], ParallelLayout],
    groups: ReplicaGroups,
) -> InfeasibleError:
    """The error with the fewest requirements and limits that conflict, and changes that were planned and fit.

    Args:
        error: That nothing fits.
        planner: The planner that raised the error.
        replan: Plans the request with a given planner.
        groups: Devices of the replicas.
    """
    most = math.inf if planner.deadline.is_soft else planner.time_limit_seconds
    deadline = Deadline.after(min(EXPLANATION_SECONDS, most))
    _, found, known = error.as_written
    refusal = described(error.shortfall).also(notes=found, help=known) if error.shortfall else error
    quick = planner.asked_whether_it_fits(CHANGED_PLAN_SECONDS)
    packing = _Packing(planner, groups)
    conflict = packing.conflict()

    def is_planned(changed: LayoutPlanner) -> bool:
        try:
            replan(changed)
        except PartitionError:
            return False
        return True

    changes = _without(quick, conflict.requirements if conflict else planner.requirements)
    message, notes, help = refusal.as_written
    helps = [help] if help else []
    helps += changes_that_help(changes, is_planned, deadline)
    lacking = error.shortfall.lacking_bytes if error.shortfall else ()
    more_memory = _with_more_memory(quick, _extra_bytes(quick, replan, lacking))
    helps += islice(changes_that_help(more_memory, is_planned, deadline), 1)
    last = len(planner.machines.devices) - 1
    at_least = packing.fewest_more_devices()
    more = fewest_more_devices(quick, lambda some: some.with_another_device(last), is_planned, deadline, at_least)
    if more:
        size = format_bytes(planner.machines.devices[last].memory_bytes)
        helps.append("add a device" if more == 1 else f"add {more} devices of {size}")
    notes = (*notes, *([conflict.note] if conflict else []))
    return InfeasibleError(message, notes=notes, help=", or ".join(helps) or None)


def _without(planner: LayoutPlanner, requirements: Sequence[Requirement]) -> Iterator[tuple[str, LayoutPlanner]]:
    for requirement in requirements:
        others = [other for other in planner.requirements if other is not requirement]
        yield f"leave out {requirement.text}", planner.with_requirements(others)


def _with_more_memory(planner: LayoutPlanner, extras: Iterable[float]) -> Iterator[tuple[str, LayoutPlanner]]:
    for extra in (math.ceil(extra / _MIB) * _MIB for extra in extras if extra > 0):
        sizes = [placed.memory_bytes + extra for placed in planner.machines.devices]
        yield f"{format_bytes(extra)} more on each device", planner.with_memory(sizes)


def _extra_bytes(
    planner: LayoutPlanner, replan: Callable[[LayoutPlanner], ParallelLayout], lacking: Sequence[int]
) -> Iterator[float]:
    """With what on each device something may fit: with what the closest pipeline lacked, with somewhat more, and with
    what the plan needs that has the smallest largest peak where memory is unlimited."""
    limits = {placed.name: placed.memory_bytes for placed in planner.machines.devices}
    if lacking:
        most = max(lacking)
        yield from (most, most + _SPARE * (most + max(limits.values())))
    with suppress(PartitionError):
        peak = replan(planner.unlimited().with_objective(Objective.MEMORY)).result.schedule.peak
        yield max(use.total_bytes - limits[name] for name, use in peak.items())


@dataclass(frozen=True, kw_only=True)
class _Conflict:
    requirements: tuple[Requirement, ...]
    note: str


class _Packing:
    """Bin packing of the least bytes of each item into the devices' memory: a necessary condition for any plan."""

    def __init__(self, planner: LayoutPlanner, groups: ReplicaGroups) -> None:
        self._planner, self._groups = planner, groups
        self._costed = planner.costed(groups)
        self._devices = self._costed.topology.devices
        self._known: dict[tuple[Requirement, ...], tuple[Coarsening, list[int]]] = {}

    def conflict(self) -> _Conflict | None:
        """The fewest requirements and limits under which nothing can be packed; None if something can."""
        facts: list[Requirement | int] = [*self._planner.requirements, *range(len(self._devices))]
        if self._can_hold(facts):
            return None
        needed = smallest_conflict(facts, self._can_hold)
        requirements = tuple(fact for fact in needed if isinstance(fact, Requirement))
        limited = [fact for fact in needed if isinstance(fact, int)]
        coarsening, sizes = self._items(requirements)
        bound = [item for item, places in enumerate(coarsening.allowed) if places <= set(limited) and sizes[item]]
        total = sum(sizes[item] for item in bound)
        names = listed(list(dict.fromkeys(coarsening.names[item] for item in bound if sizes[item] > total / 1000)))
        room = sum(self._devices[device].memory_bytes for device in limited)
        places = listed_devices([self._devices[device].name for device in limited])
        why = f" ({', '.join(requirement.text for requirement in requirements)})" if requirements else ""
        return _Conflict(
            requirements=requirements,
            note=f"conflict: {names} keep {format_bytes(total)} and may be on {places} only{why}: "
            f"{format_bytes(room)} in all",
        )

    def fewest_more_devices(self) -> float:
        """Fewest added devices, like the last one, with room for what items keep; infinite where no number helps."""
        _, sizes = self._items(tuple(self._planner.requirements))
        room = [placed.memory_bytes for placed in self._devices]
        if max(sizes, default=0) > max(room) or not room[-1]:
            return math.inf
        return max(0, math.ceil((sum(sizes) - sum(room)) / room[-1]))

    def _items(self, requirements: tuple[Requirement, ...]) -> tuple[Coarsening, list[int]]:
        """The items under requirements, and what each keeps."""
        if requirements not in self._known:
            coarsening = coarsen(self._costed, constraints=self._planner.constraints(self._groups, requirements))
            self._known[requirements] = coarsening, lasting_item_bytes(self._costed, coarsening)
        return self._known[requirements]

    def _can_hold(self, facts: Sequence[Requirement | int]) -> bool:
        """Whether items can be packed under these requirements and limits; true where the solver did not decide."""
        coarsening, sizes = self._items(tuple(fact for fact in facts if isinstance(fact, Requirement)))
        count = len(self._devices)
        limits = [placed.memory_bytes if index in facts else _NO_LIMIT for index, placed in enumerate(self._devices)]
        if overfull(sizes, coarsening.allowed, limits) is not None:
            return False
        problem = PlacementProblem(
            devices=tuple(
                ProblemDevice(name=placed.name, capacity_bytes=limit)
                for placed, limit in zip(self._devices, limits, strict=True)
            ),
            links=((ProblemLink(latency_ns=0, picoseconds_per_byte=0),) * count,) * count,
            items=tuple(
                Item(name=name, memory_bytes=size, allowed_devices=tuple(sorted(places)))
                for name, size, places in zip(coarsening.names, sizes, coarsening.allowed, strict=True)
            ),
            tasks=(),
            time_limit_seconds=PACKING_SECONDS,
        )
        return solve(problem).solution.status != "infeasible"
