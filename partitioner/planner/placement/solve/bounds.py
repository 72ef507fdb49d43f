"""Bounds on the makespan that need no search: the longest path at the fastest devices, and the total work."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.problem import PlacementProblem
from partitioner.planner.placement.solve.evaluate import allowed_devices, delay_ns, precedences, topological_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds per task, in nanoseconds, for every assignment.

    Attributes:
        heads_ns: No task starts earlier.
        fastest_ns: No task takes less.
        tails_ns: Nothing shorter lies between a task's end and the makespan.
        lower_ns: No assignment has a shorter makespan.
        upper_ns: Some schedule of every assignment ends by then.
        longest_path: The tasks of a path that takes the longest, each at its fastest.
    """

    heads_ns: tuple[int, ...]
    fastest_ns: tuple[int, ...]
    tails_ns: tuple[int, ...]
    lower_ns: int
    upper_ns: int
    longest_path: tuple[int, ...]


def bounds(problem: PlacementProblem) -> Bounds | None:
    """Bound every task of the problem; None when some item fits on no device it may take."""
    allowed = allowed_devices(problem)
    if not all(allowed):
        return None
    num_tasks, num_devices = len(problem.tasks), len(problem.devices)
    options = [[task.duration_ns[d] for d in allowed[task.item]] for task in problem.tasks]
    fastest = [min(durations) for durations in options]
    successors: list[list[tuple[int, int]]] = [[] for _ in range(num_tasks)]
    upper_ns = sum(max(durations) for durations in options)
    for (source, target), size_bytes in precedences(problem).items():
        sources, targets = allowed[problem.tasks[source].item], allowed[problem.tasks[target].item]
        delays = [delay_ns(problem, a, b, size_bytes) for a in sources for b in targets]
        if problem.tasks[source].item == problem.tasks[target].item:
            delays = [0]
        successors[source].append((target, min(delays)))
        upper_ns += max(delays)

    order = topological_order(problem)
    heads = [0] * num_tasks
    for task in order:
        for target, delay in successors[task]:
            heads[target] = max(heads[target], heads[task] + fastest[task] + delay)
    tails = [0] * num_tasks
    follows: list[int | None] = [None] * num_tasks
    for task in reversed(order):
        for target, delay in successors[task]:
            length = delay + fastest[target] + tails[target]
            if follows[task] is None or length > tails[task]:
                tails[task], follows[task] = length, target

    path: list[int] = []
    at = max(order, key=lambda task: fastest[task] + tails[task], default=None)
    while at is not None:
        path.append(at)
        at = follows[at]
    longest_ns = max((fastest[task] + tails[task] for task in order), default=0)
    return Bounds(
        heads_ns=tuple(heads),
        fastest_ns=tuple(fastest),
        tails_ns=tuple(tails),
        lower_ns=max(longest_ns, -(-sum(fastest) // num_devices)),
        upper_ns=upper_ns,
        longest_path=tuple(path),
    )
