"""Warm starts: the caller's hints, everything on one device, and devices filled one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.ir.problem import PlacementProblem, Solution
from partitioner.planner.placement.solve.bounds import bounds
from partitioner.planner.placement.solve.evaluate import (
    ScheduledAssignment,
    allowed_devices,
    schedule_assignment,
    violations,
)


def best_start(problem: PlacementProblem) -> ScheduledAssignment | None:
    """The feasible warm start with the shortest makespan (of equals, the first); None when none is feasible."""
    feasible = (a for a in dict.fromkeys(_candidates(problem)) if not any(violations(problem, a)))
    return min((schedule_assignment(problem, a) for a in feasible), key=lambda s: s.makespan_ns, default=None)


def proved_at_once(problem: PlacementProblem) -> Solution | None:
    """The optimum, when the best warm start meets the bound that needs no search; None otherwise."""
    limits, start = bounds(problem), best_start(problem)
    if problem.balance_permille or limits is None or start is None or start.makespan_ns > limits.lower_ns:
        return None
    return Solution(
        status="optimal",
        assignment=start.assignment,
        makespan_ns=start.makespan_ns,
        shortest_ns=start.makespan_ns,
        lower_bound_ns=limits.lower_ns,
    )


def _candidates(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    yield from problem.hints
    for device in range(len(problem.devices)):
        yield (device,) * len(problem.items)
    allowed = allowed_devices(problem)
    if all(allowed):
        capacities = [device.capacity_bytes for device in problem.devices]
        total_bytes = sum(item.memory_bytes for item in problem.items)
        yield _filled(problem, allowed, capacities)
        yield _filled(problem, allowed, [min(c, -(-total_bytes // len(capacities))) for c in capacities])


def _filled(problem: PlacementProblem, allowed: list[tuple[int, ...]], capacities: list[int]) -> tuple[int, ...]:
    """Each item on the device of the item before it while that device has room, else on the device with most room."""
    room = list(capacities)
    assignment: list[int] = []
    for item, devices in zip(problem.items, allowed, strict=True):
        device = assignment[-1] if assignment else devices[0]
        if device not in devices or room[device] < item.memory_bytes:
            device = max(devices, key=lambda d: room[d])
        room[device] -= item.memory_bytes
        assignment.append(device)
    return tuple(assignment)
