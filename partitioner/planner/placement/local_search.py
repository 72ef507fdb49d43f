"""Improve a placement by looking at its neighbours: one item moved, or two items exchanged.

The solver works with whole tasks in the best order; the simulation runs op by op, first come first served.
Local search closes part of the distance: it is hill climbing on the simulation itself (Kernighan and Lin, "An efficient
heuristic procedure for partitioning graphs", 1970, has the same moves).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations

from partitioner.planner.model.assignment import Assignment

Key = tuple[float, ...]


def local_search(
    start: Assignment,
    *,
    adjacent: Sequence[Collection[int]],
    num_devices: int,
    objective_key: Callable[[Assignment, Key | None], Key | None],
) -> Assignment:
    """The best placement that single improvements lead to.

    Args:
        start: Device index per item.
        adjacent: For each item, the items it exchanges tensors with; moves to their devices are tried first.
        num_devices: Devices to choose from.
        objective_key: The key to minimise; infinite for a placement that is not allowed, None to stop looking. It is
            told the least key so far, and may return any key that is not less where the placement's own is not.
    """
    best, best_key = start, objective_key(start, None)
    improved = best_key is not None
    while improved:
        improved = False
        for candidate in _neighbours(best, adjacent, num_devices):
            key = objective_key(candidate, best_key)
            if key is None:
                return best
            if best_key is None or key < best_key:
                best, best_key, improved = candidate, key, True
                break
    return best


def _neighbours(assignment: Assignment, adjacent: Sequence[Collection[int]], num_devices: int) -> Iterator[Assignment]:
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
