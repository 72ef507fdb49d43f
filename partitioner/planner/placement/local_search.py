"""Improve a placement by looking at its neighbours, which `neighbours.py` gives.

The solver works with whole tasks in the best order; the simulation runs op by op, first come first served.
Local search closes part of the distance: it is hill climbing on the simulation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from partitioner.planner.model.assignment import Assignment

Key = tuple[float, ...]


def local_search(
    start: Assignment,
    *,
    neighbours: Callable[[Assignment], Iterable[Assignment]],
    objective_key: Callable[[Assignment, Key | None], Key | None],
) -> Assignment:
    """The best placement that single improvements lead to.

    Args:
        start: Device index per item.
        neighbours: Of a placement, the most promising first.
        objective_key: The key to minimise; infinite for a placement that is not allowed, None to stop looking. It is
            told the least key so far, and may return any key that is not less where the placement's own is not.
    """
    best, best_key = start, objective_key(start, None)
    improved = best_key is not None
    while improved:
        improved = False
        for candidate in neighbours(best):
            key = objective_key(candidate, best_key)
            if key is None:
                return best
            if best_key is None or key < best_key:
                best, best_key, improved = candidate, key, True
                break
    return best
