"""Bounds of free placements: by heavy items, by prices or device bounds, and by CP-SAT on all items, in turns."""

from __future__ import annotations

from partitioner.cost_graphs.solver.cp_sat import run_model
from partitioner.cost_graphs.solver.free.device_bound import DeviceBound, raise_by_counts
from partitioner.cost_graphs.solver.free.model import FreeModel, in_order
from partitioner.cost_graphs.solver.free.prices import PriceBound
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem

_PRICES, _MOST_PRICES = 0.6, 0.9
"""The part of the work for prices, or for device bounds where there are none, and its maximum.

It grows after each round in which CP-SAT did not raise the bound.
"""


class FreeProof:
    """Works in rounds; each depends only on the answer at its start.

    Attributes:
        budget: The remaining budget.
    """

    def __init__(self, problem: MaxLoadProblem, budget: Budget) -> None:
        """Start without work."""
        self._problem = problem
        self._prices: PriceBound | None = None
        self._device_bound = DeviceBound(problem)
        self._part = _PRICES
        self._counted_below = 0
        self.budget = budget

    def run(self, incumbent: Incumbent, answer: MaxLoadAnswer, upper_bound: int, work: float) -> None:
        """Raise the bound within an amount of work; CP-SAT may also find a better assignment."""
        end = self.budget.work - work
        if upper_bound != self._counted_below:
            raise_by_counts(self._problem, incumbent, upper_bound, self.budget)
            self._counted_below = upper_bound
        if self._prices is None:
            self._prices = PriceBound(self._problem, self.budget)
        if self._prices.has_frontier:
            self._prices.run(incumbent, upper_bound, self.budget, self._part * work)
        else:
            self._device_bound.run(incumbent, upper_bound, self.budget, self._part * work)
        if incumbent.is_settled:
            return
        model = FreeModel(self._problem, answer.lower_bound, upper_bound)
        model.open_devices_in_order()
        model.minimise_largest()
        if answer.assignment is not None:
            model.hint(in_order(self._problem, answer.assignment))
        left = max(self.budget.work - end, (1 - self._part) * work)
        before = incumbent.lower_bound
        run_model(model, incumbent, self.budget, work=left, seed=self._problem.seed, method="CP-SAT on all items")
        self._part = _PRICES if incumbent.lower_bound > before else min(_MOST_PRICES, (1 + self._part) / 2)
