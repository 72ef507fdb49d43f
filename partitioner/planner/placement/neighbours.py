"""Placements next to one: an item moved, two exchanged, or the end of a part moved.

Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs", 1970, has the first two moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from partitioner.planner.model.assignment import Assignment

# Items by which the end of a part moves: far first, as simulations are few, but not beyond a layer or two.
_STEPS = (4, 1, 2, 8)


def single_changes(
    assignment: Assignment, adjacent: Sequence[Collection[int]], num_devices: int
) -> Iterator[Assignment]:
    """One item moved, then two exchanged.

    Args:
        assignment: Device index per item.
        adjacent: For each item, the items it exchanges tensors with; moves to their devices come first.
        num_devices: Devices to choose from.
    """
    near = [sorted({assignment[other] for other in others}) for others in adjacent]
    for is_near in (True, False):
        for item, device in enumerate(assignment):
            for target in range(num_devices):
                if target != device and (target in near[item]) is is_near:
                    yield (*assignment[:item], target, *assignment[item + 1 :])
    for a, b in combinations(range(len(assignment)), 2):
        if assignment[a] != assignment[b]:
            swapped = list(assignment)
            swapped[a], swapped[b] = assignment[b], assignment[a]
            yield tuple(swapped)


def moved_ends(assignment: Assignment, order: Sequence[int]) -> Iterator[Assignment]:
    """One end of the parts that follow each other in this order of the items moved, either way."""
    row = [assignment[item] for item in order]
    ends = [place for place in range(1, len(row)) if row[place] != row[place - 1]]
    for step in _STEPS:
        for end in ends:
            ahead, back = range(end, min(end + step, len(row))), range(max(0, end - step), end)
            for places, device in ((ahead, row[end - 1]), (back, row[end])):
                moved = dict.fromkeys((order[place] for place in places), device)
                yield tuple(moved.get(item, device) for item, device in enumerate(assignment))
