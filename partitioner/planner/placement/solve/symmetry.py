"""Interchangeable devices, and the canonical assignment among those that differ only by such devices."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.problem import PlacementProblem


def interchangeable_devices(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Groups of two or more devices that may be swapped; swaps compose, so one comparison is enough."""
    groups: list[list[int]] = []
    for device in range(len(problem.devices)):
        for group in groups:
            if _swappable(problem, group[0], device):
                group.append(device)
                break
        else:
            groups.append([device])
    return [tuple(group) for group in groups if len(group) > 1]


def canonical(assignment: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Rename devices inside each group so that items use them in rising order."""
    name: dict[int, int] = {}
    for group in groups:
        appearing = list(dict.fromkeys(device for device in assignment if device in group))
        name.update(zip(appearing, group, strict=False))
    return tuple(name.get(device, device) for device in assignment)


def _swappable(problem: PlacementProblem, a: int, b: int) -> bool:
    links = problem.links
    return (
        problem.devices[a].capacity_bytes == problem.devices[b].capacity_bytes
        and all(task.duration_ns[a] == task.duration_ns[b] for task in problem.tasks)
        and all((a in item.allowed_devices) == (b in item.allowed_devices) for item in problem.items)
        and links[a][b] == links[b][a]
        and all(
            links[a][c] == links[b][c] and links[c][a] == links[c][b]
            for c in range(len(problem.devices))
            if c not in (a, b)
        )
    )
