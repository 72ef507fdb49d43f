"""Lower bounds without search: by all work, and by the most expensive item."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from partitioner.cost_graphs.solver.problem import MaxLoadProblem


def quick_bound(problem: MaxLoadProblem) -> int:
    """The larger of the work balance and of the most expensive item on its cheapest device."""
    return max(_most_expensive_item(problem), work_balance(problem))


def _most_expensive_item(problem: MaxLoadProblem) -> int:
    kinds = {device.kind: device for device in problem.devices}.values()
    bound = 0
    for item in problem.items:
        places = [d for n, d in enumerate(problem.devices) if n not in item.barred] if item.barred else kinds
        costs = [item.cost_on(device) for device in places]
        bound = max(bound, min(costs, default=0))
    return bound


def work_balance(problem: MaxLoadProblem) -> int:
    """The least load at which the devices can do all the work if items can be split and moved at no cost."""
    relief = CpuRelief(problem, [item.accelerator_cost for item in problem.items])
    num_accelerators = sum(not device.is_cpu for device in problem.devices)
    total = sum(item.accelerator_cost for item in problem.items)
    low, high = 0, sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    while low < high:
        middle = (low + high) // 2
        if total - relief.within(middle) <= num_accelerators * middle:
            high = middle
        else:
            low = middle + 1
    return low


class CpuRelief:
    """A bound on the integer prices that CPUs can take over: of fractional items, rounded down."""

    def __init__(self, problem: MaxLoadProblem, prices: Sequence[int]) -> None:
        """`prices` are at least 0, one per item."""
        self._num_cpus = sum(device.is_cpu for device in problem.devices)
        priced = [(price, item.cpu_cost) for price, item in zip(prices, problem.items, strict=True) if price]
        costly = [pair for pair in priced if pair[1] and self._num_cpus]
        best = sorted(costly, key=lambda pair: Fraction(*pair), reverse=True)
        self._costs = [0, *accumulate(cost for _, cost in best)]
        self._values = list(accumulate((price for price, _ in best), initial=sum(p for p, cost in priced if not cost)))

    def within(self, load: int, num_cpus: int | None = None) -> int:
        """The most that CPUs (all by default) can take over, each within a load: the lesser of two bounds."""
        num_cpus = self._num_cpus if num_cpus is None else num_cpus
        return min(self._in_room(num_cpus * load), num_cpus * self._in_room(load))

    def _in_room(self, room: int) -> int:
        whole = bisect_right(self._costs, room) - 1
        if whole == len(self._costs) - 1:
            return self._values[-1]
        price = self._values[whole + 1] - self._values[whole]
        cost = self._costs[whole + 1] - self._costs[whole]
        return self._values[whole] + price * (room - self._costs[whole]) // cost
