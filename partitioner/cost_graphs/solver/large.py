"""Problems that are too large for the full search: cut an order evenly, then move blocks of the result."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.contiguous.chain import best_chain
from partitioner.cost_graphs.solver.free.neighbourhood import Neighbourhood
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import Contracted, merge
from partitioner.cost_graphs.solver.reduce.even import cut_evenly, linear_orders
from partitioner.cost_graphs.solver.start import first_fit

_BLOCKS = 1_000
_BLOCKS_PER_DEVICE = 4
_STEP_WORK = 0.5
_PATIENCE = 40
_MOST_CHAIN_WORK = 10**9


def solve_large(problem: MaxLoadProblem, incumbent: Incumbent, budget: Budget) -> None:
    """Offer placements found in time; the bound is by work alone.

    Args:
        problem: The problem; `precedes` has no cycle.
        incumbent: Gets all placements.
        budget: The remaining budget.
    """
    incumbent.raise_bound(quick_bound(problem))
    order: tuple[int, ...] = ()
    for order in linear_orders(problem):
        incumbent.offer(cut_evenly(problem, order), "even pieces of an order")
    blocks = _blocks(problem, order, incumbent.assignment)
    num_devices = len(problem.devices)
    if incumbent.assignment is None:
        assignment = first_fit(blocks.problem)
        incumbent.offer(None if assignment is None else blocks.lift(assignment), "first fit of blocks")
    elif problem.contiguous and len(blocks.problem.items) ** 2 * num_devices <= _MOST_CHAIN_WORK:
        assignment = best_chain(blocks.problem)
        incumbent.offer(None if assignment is None else blocks.lift(assignment), "intervals of an order of blocks")
    if incumbent.assignment is not None and not problem.contiguous:
        _improve(problem, blocks, incumbent, budget)


def _improve(problem: MaxLoadProblem, blocks: Contracted, incumbent: Incumbent, budget: Budget) -> None:
    """Move blocks until that has not helped for some time."""
    assert incumbent.assignment is not None
    start = blocks.lower(incumbent.assignment)
    if start is None:
        return
    trajectory = Neighbourhood(blocks.problem, start, problem.seed)
    failures = 0
    while failures < _PATIENCE and not (incumbent.is_settled or budget.is_spent):
        before = trajectory.work
        if trajectory.step(_STEP_WORK, budget.seconds):
            incumbent.offer(blocks.lift(trajectory.assignment), "large neighbourhoods of blocks")
            failures = 0
        else:
            failures += 1
        budget.work -= trajectory.work - before


def _blocks(problem: MaxLoadProblem, order: Sequence[int], assignment: Sequence[int] | None) -> Contracted:
    """Merge neighbours in the order that may be on the same devices, and are on the same device if assigned."""
    count = max(_BLOCKS, _BLOCKS_PER_DEVICE * len(problem.devices))
    weights = [item.accelerator_cost + 1 for item in problem.items]
    most = -(-sum(weights) // count)
    labels = [0] * len(order)
    label, weight, last = -1, 0, None
    for item in order:
        kind = (problem.items[item].barred, None if assignment is None else assignment[item])
        weight += weights[item]
        if kind != last or weight > most:
            label, weight, last = label + 1, weights[item], kind
        labels[item] = label
    return merge(problem, labels)
