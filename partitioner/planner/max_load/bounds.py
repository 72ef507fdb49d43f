"""Lower bounds that need no search: work must go somewhere, and each item somewhere too."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from partitioner.ir.max_load import MaxLoadProblem


def quick_bound(problem: MaxLoadProblem) -> int:
    """The better of the work balance and of the item that is dearest wherever it goes."""
    return max(_dearest_item(problem), work_balance(problem))


def _dearest_item(problem: MaxLoadProblem) -> int:
    kinds = {device.kind: device for device in problem.devices}.values()
    bound = 0
    for item in problem.items:
        costs = [item.cost_on(device) for device in kinds if device.is_cpu or not item.needs_cpu]
        bound = max(bound, min(costs, default=0))
    return bound


def work_balance(problem: MaxLoadProblem) -> int:
    """The least load at which the devices could do all the work if items could be split and moved for nothing."""
    low, high = 0, sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    while low < high:
        middle = (low + high) // 2
        if work_fits(problem, middle):
            high = middle
        else:
            low = middle + 1
    return low


def work_fits(problem: MaxLoadProblem, load: int) -> bool:
    """Whether split items fit: CPUs take first what is cheapest there for what it spares the accelerators."""
    num_cpus = sum(device.is_cpu for device in problem.devices)
    num_accelerators = len(problem.devices) - num_cpus
    total = sum(item.accelerator_cost for item in problem.items)
    return total - cpu_relief(problem, num_cpus * load) <= num_accelerators * load


def cpu_relief(problem: MaxLoadProblem, cpu_load: int, prices: Sequence[int] | None = None) -> int:
    """The most of the items' prices that CPUs can take over with `cpu_load` in all, rounded up; items may be split.

    `prices` are the items' costs on an accelerator, if not given.
    """
    if not any(device.is_cpu for device in problem.devices):
        return 0
    worth = prices if prices is not None else [item.accelerator_cost for item in problem.items]
    free = sum(price for price, item in zip(worth, problem.items, strict=True) if item.cpu_cost == 0)
    costly = [
        (Fraction(price, item.cpu_cost), price, item.cpu_cost)
        for price, item in zip(worth, problem.items, strict=True)
        if item.cpu_cost and price
    ]
    taken = Fraction(free)
    for ratio, price, cost in sorted(costly, reverse=True):
        if cost > cpu_load:
            return -int(-(taken + ratio * cpu_load) // 1)
        taken += price
        cpu_load -= cost
    return -int(-taken // 1)
