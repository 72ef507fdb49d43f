"""The load of each device in an assignment, and the violations of an assignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from partitioner.cost_graphs.solver.problem import MaxLoadProblem


def loads(problem: MaxLoadProblem, assignment: Sequence[int]) -> list[int]:
    """The load of every device."""
    load = [0] * len(problem.devices)
    for item, device in zip(problem.items, assignment, strict=True):
        load[device] += item.cost_on(problem.devices[device])
    for value in problem.values:
        touched = {assignment[item] for item in value.items}
        if len(touched) > 1:
            for device in touched:
                if not problem.devices[device].is_cpu:
                    load[device] += value.cost
    return load


def violations(problem: MaxLoadProblem, assignment: Sequence[int]) -> Iterator[str]:
    """Every reason why the assignment is not allowed."""
    if len(assignment) != len(problem.items):
        yield f"{len(assignment)} devices for {len(problem.items)} items"
        return
    if not all(0 <= device < len(problem.devices) for device in assignment):
        yield "an unknown device"
        return
    held = [0] * len(problem.devices)
    for index, (item, device) in enumerate(zip(problem.items, assignment, strict=True)):
        held[device] += item.memory_bytes
        if device in item.barred:
            yield f"item {index} may not be on {problem.devices[device].name}"
    for device, used in zip(problem.devices, held, strict=True):
        if device.capacity_bytes is not None and used > device.capacity_bytes:
            yield f"{device.name} would hold {used} bytes of {device.capacity_bytes}"
    if problem.contiguous and device_order(problem, assignment) is None:
        yield "the pieces are not contiguous"


def device_order(problem: MaxLoadProblem, assignment: Sequence[int]) -> list[int] | None:
    """All devices in an order in which no item comes before its predecessors; None if there is none."""
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(problem.devices)), ()))
    for a, b in problem.precedes:
        if assignment[a] != assignment[b]:
            sorter.add(assignment[b], assignment[a])
    try:
        return list(sorter.static_order())
    except CycleError:
        return None


def device_groups(problem: MaxLoadProblem) -> list[list[int]]:
    """Groups of interchangeable devices, in the order of their first devices."""
    barred: dict[int, list[int]] = {}
    for number, item in enumerate(problem.items):
        for index in item.barred:
            barred.setdefault(index, []).append(number)
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, device in enumerate(problem.devices):
        groups.setdefault((device.kind, device.capacity_bytes, *barred.get(index, ())), []).append(index)
    return list(groups.values())


def assign_pieces(problem: MaxLoadProblem, pieces: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, ...]:
    """The assignment that puts each piece (a device group and its items) on the next device of its group."""
    groups = [iter(group) for group in device_groups(problem)]
    assignment = [-1] * len(problem.items)
    for group, items in pieces:
        device = next(groups[group])
        for item in items:
            assignment[item] = device
    return tuple(assignment)
