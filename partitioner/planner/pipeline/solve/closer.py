"""Look at cuts into stages closer, those with the least bound first: the least of all bounds the family."""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.deadline import Deadline
from partitioner.planner.pipeline.solve.longest_paths import CutSearch
from partitioner.planner.pipeline.solve.problem import BoundRequest, CutProblem, LeastStep
from partitioner.stages.schedules import device_orders

# Branches between two looks at which bound is the least.
_BRANCHES = 10
# Bounds up to so many times the best cut's step are of interest: simulations may take as much longer.
_ENOUGH = 1.02


def closer_steps(request: BoundRequest) -> tuple[LeastStep, ...]:
    """A bound for each problem, and a cut for those that were looked at."""
    deadline = Deadline.after(request.seconds)
    found = [LeastStep(seconds=problem.bound_seconds) for problem in request.problems]
    searches: dict[int, list[CutSearch]] = {}
    closed: set[int] = set()
    enough = request.enough_seconds
    while len(closed) < len(found) and not deadline.is_over:
        if sum(search.num_calls for those in searches.values() for search in those) >= request.most_calls:
            break
        least = min((step.seconds, number) for number, step in enumerate(found) if number not in closed)[1]
        if found[least].seconds >= enough:
            break
        problem = request.problems[least]
        if least in searches:
            branched = [search.branch(enough, _BRANCHES) for search in searches[least]]
            if not any(branched):
                closed.add(least)
        else:
            searches[least] = list(_searches(problem, enough))
        found[least] = _best(problem, searches[least], request.enough_seconds)
        enough = min([enough, *(_ENOUGH * search.estimated_seconds for search in searches[least])])
    return tuple(found)


def _best(problem: CutProblem, searches: list[CutSearch], enough_seconds: float) -> LeastStep:
    """What is known of all cuts: those that the problem's ranges leave out take longer than enough."""
    bound = min([enough_seconds, *(search.bound_seconds for search in searches)])
    best = min(searches, key=lambda search: search.estimated_seconds, default=None)
    return LeastStep(seconds=max(problem.bound_seconds, bound), ends=best.ends if best else ())


def _searches(problem: CutProblem, enough: float) -> Iterator[CutSearch]:
    """One for each choice of which of the first and of the last stages have no backward."""
    num_stages, most = len(problem.devices), problem.num_items
    names = [str(device) for device in problem.devices]
    orders = device_orders(problem.schedule, names, problem.num_microbatches, training=problem.training)
    first, last = problem.crossed
    for ahead in range(first):
        for behind in range(most - last):
            if ahead + behind < num_stages:
                # Boundaries that no gradient crosses, those that one crosses, and again such that none does.
                places: list[tuple[int, int]] = [(1, first - 1)] * ahead
                places += [(first, last)] * (num_stages - 1 - ahead - behind) + [(last + 1, most - 1)] * behind
                ranges = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(places, problem.ranges, strict=True))
                going_back = range(ahead, num_stages - behind) if problem.training else range(0)
                yield CutSearch(problem, orders, ranges, going_back, enough)
