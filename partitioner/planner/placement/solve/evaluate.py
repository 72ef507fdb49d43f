"""Evaluate an assignment: whether it is feasible, and a schedule with the problem's semantics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from partitioner.ir.problem import PlacementProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledAssignment:
    """An assignment (device index per item) with the start of every task and the end of the last task."""

    assignment: tuple[int, ...]
    starts_ns: tuple[int, ...]
    makespan_ns: int


def allowed_devices(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Per item, the devices it may take: those it allows whose capacity holds at least this item alone."""
    everywhere = range(len(problem.devices))
    return [
        tuple(
            d
            for d in sorted(set(item.allowed_devices or everywhere))
            if item.memory_bytes <= problem.devices[d].capacity_bytes
        )
        for item in problem.items
    ]


def precedences(problem: PlacementProblem) -> dict[tuple[int, int], int]:
    """Bytes of the largest transfer from one task to another, by (source, target).

    The largest arrives last and transfers do not delay each other, so the others never matter.
    """
    sizes: dict[tuple[int, int], int] = {}
    for transfer in problem.transfers:
        for target in transfer.targets:
            key = (transfer.source, target)
            sizes[key] = max(transfer.size_bytes, sizes.get(key, 0))
    return sizes


def delay_ns(problem: PlacementProblem, source: int, target: int, size_bytes: int) -> int:
    """Nanoseconds to move `size_bytes` between two devices; none on one device."""
    return 0 if source == target else problem.links[source][target].duration_ns(size_bytes)


def topological_order(problem: PlacementProblem) -> list[int]:
    """All tasks, each after the tasks it waits for."""
    waits: dict[int, set[int]] = {task: set() for task in range(len(problem.tasks))}
    for source, target in precedences(problem):
        waits[target].add(source)
    return list(TopologicalSorter(waits).static_order())


def violations(problem: PlacementProblem, assignment: Sequence[int]) -> Iterable[str]:
    """Why the problem forbids `assignment`; nothing when it is feasible."""
    if len(assignment) != len(problem.items):
        yield f"{len(assignment)} devices for {len(problem.items)} items"
        return
    used_bytes = [0] * len(problem.devices)
    for item, device in zip(problem.items, assignment, strict=True):
        if not 0 <= device < len(problem.devices) or (item.allowed_devices and device not in item.allowed_devices):
            yield f"item {item.name!r} may not be on device {device}"
            return
        used_bytes[device] += item.memory_bytes
    for used, device in zip(used_bytes, problem.devices, strict=True):
        if used > device.capacity_bytes:
            yield f"device {device.name!r} would hold {used} bytes of {device.capacity_bytes}"
    if problem.use_every_device and len(set(assignment)) < len(problem.devices):
        yield f"only {len(set(assignment))} of {len(problem.devices)} devices are used"


def schedule_assignment(
    problem: PlacementProblem, assignment: Sequence[int], priority: Sequence[int] | None = None
) -> ScheduledAssignment:
    """Schedule the tasks of a placed problem; the shortest schedule where the order on each device is forced.

    Each step runs the task that can start first; of several, the task with the longest path to the end (list
    scheduling: Graham 1969; critical-path constraint: Adam, Chandy, Dickson 1974). With `priority`, tasks run by
    rising priority instead: given the starts of a feasible schedule, no task ends later than in that schedule. A task
    of no duration takes no place on its device.
    """
    device = [assignment[task.item] for task in problem.tasks]
    duration = [task.duration_ns[d] for task, d in zip(problem.tasks, device, strict=True)]
    sizes = precedences(problem)
    successors: list[list[tuple[int, int]]] = [[] for _ in problem.tasks]
    waiting = [0] * len(problem.tasks)
    for (source, target), size_bytes in sizes.items():
        successors[source].append((target, delay_ns(problem, device[source], device[target], size_bytes)))
        waiting[target] += 1
    order = topological_order(problem)
    tail = list(duration)
    for task in reversed(order):
        tail[task] += max((delay + tail[target] for target, delay in successors[task]), default=0)

    rank = {task: position for position, task in enumerate(order)}
    free = [0] * len(problem.devices)
    arrival = [0] * len(problem.tasks)
    starts = [0] * len(problem.tasks)
    makespan = 0

    def start_of(task: int) -> int:
        return max(arrival[task], free[device[task]]) if duration[task] else arrival[task]

    def key(task: int) -> tuple[int, int, int]:
        if priority is not None:
            return priority[task], 0, rank[task]
        return start_of(task), -tail[task], rank[task]

    ready = {task for task in order if not waiting[task]}
    while ready:
        task = min(ready, key=key)
        ready.remove(task)
        starts[task] = start_of(task)
        end = starts[task] + duration[task]
        if duration[task]:
            free[device[task]] = end
        makespan = max(makespan, end)
        for target, delay in successors[task]:
            arrival[target] = max(arrival[target], end + delay)
            waiting[target] -= 1
            if not waiting[target]:
                ready.add(target)
    return ScheduledAssignment(assignment=tuple(assignment), starts_ns=tuple(starts), makespan_ns=makespan)
