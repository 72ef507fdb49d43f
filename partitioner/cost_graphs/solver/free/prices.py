"""A bound from prices: at some prices of items, no accelerator can take its share of the total price.

This is the linear relaxation over all sets that an accelerator may have within a load (P. C. Gilmore and R. E. Gomory,
"A linear programming approach to the cutting-stock problem", Operations Research 9, 1961), in its dual form: prices
come from a linear program over the sets so far, and the most profitable set at these prices is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from partitioner.cost_graphs.solver.bounds import CpuRelief
from partitioner.cost_graphs.solver.contiguous.chain import interval_costs
from partitioner.cost_graphs.solver.free.best_sets import BestSets, best_sets
from partitioner.cost_graphs.solver.free.frontier import Numbers, narrow_frontier
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.problem import MaxLoadProblem

_MOST_STATES = 60_000
_FEWEST_POINTS, _MOST_POINTS, _MORE = 8_000, 64_000, 1.2
"""Number of different sets to follow, and the factor by which it grows whenever these were not all."""

_FRONTIER_WORK = 1e-3
_PROGRAM_WORK = 5e-8
"""Work of solving the linear program per item and set, in CP-SAT's deterministic units."""

_GRAIN, _FINEST_GRAIN, _FINER = 1_200, 9_600, 2
"""The integer price of a set with price 1: the smaller, the fewer different sums there are. It grows by this factor
whenever rounding hides profitable sets."""

_SETS_AT_ONCE = 24
_LEAST_TRUST, _MOST_TRUST = 0.6, 0.99
"""Weight of the best prices so far against the prices of the linear program in the next prices, within these limits: it
follows from how far both are from the value to show. Half of it, then 0, if that gives no new sets."""

_CLOSE = 1e-4
_PARTS, _NEAR, _PARTS_NEAR = 3, 5e-3, 4
"""The next load to refute is the bound plus this part of the gap: loads that are refuted soon raise the bound most.
Where the gap is small, it is this part below the least possible load, to close the gap."""

_STALE = 2
"""A load above this part of the gap is replaced by another load, if the incumbent has improved meanwhile."""


class PriceBound:
    """Bisects for the least load at which no prices refute that the accelerators can hold all items.

    Attributes:
        has_frontier: Whether the items have an order with few states; without, prices prove nothing.
        is_done: Whether prices cannot raise the bound further.
    """

    def __init__(self, problem: MaxLoadProblem, budget: Budget) -> None:
        """Look for an order with few states, at the cost of the budget."""
        self._problem = problem
        self._num_accelerators = sum(not device.is_cpu for device in problem.devices)
        work = np.array([item.accelerator_cost for item in problem.items], dtype=float)
        self._frontier = narrow_frontier(problem, _MOST_STATES) if self._num_accelerators and work.any() else None
        budget.work -= _FRONTIER_WORK * len(problem.items)
        self._first_prices = self._best_prices = work / max(work.sum(), 1.0) * self._num_accelerators
        self._best_rate = 0.0
        self._most_points = _FEWEST_POINTS
        self._grain = _GRAIN
        self._sets: dict[tuple[int, ...], int] = {}
        self._possible: int | None = None
        self._program: _Program | None = None
        self.has_frontier = self._frontier is not None
        self.is_done = not self.has_frontier

    def run(self, incumbent: Incumbent, upper_bound: int, budget: Budget, work: float) -> None:
        """Raise the bound within an amount of work; a load of `upper_bound` is possible."""
        end = budget.work - work
        self._possible = min(self._possible or upper_bound, upper_bound)
        while budget.work > end and not (self.is_done or budget.is_spent or incumbent.is_settled):
            low, aim = incumbent.lower_bound, self._aim(incumbent.lower_bound)
            highest = max(aim, low + (self._possible - low) // _STALE)
            if self._program is not None and low <= self._program.limit <= highest:
                self._improve(self._program, incumbent, budget)
            elif self._possible - low <= _CLOSE * low and self._possible < upper_bound:
                self.is_done = True
            else:
                self._begin(aim, incumbent, budget)

    def _aim(self, low: int) -> int:
        """The next load to refute, where all below `low` are refuted."""
        assert self._possible is not None
        left = self._possible - low
        if left <= _CLOSE * low:
            return self._possible - 1
        return self._possible - -(-left // _PARTS_NEAR) if left <= _NEAR * low else low + left // _PARTS

    def _begin(self, limit: int, incumbent: Incumbent, budget: Budget) -> None:
        """Start to refute another load, first with prices by work: the best prices of another load may be worse."""
        assert self._frontier is not None
        self._program = _Program(self._problem, limit)
        self._program.add(_longest_intervals(self._problem, [step.item for step in self._frontier], limit))
        self._program.add(items for items, load in self._sets.items() if load <= limit)
        self._best_rate, best_prices = 0.0, self._best_prices
        self._ask(self._first_prices, self._program, incumbent, budget)
        if best_prices is not self._first_prices and incumbent.lower_bound <= limit:
            self._ask(best_prices, self._program, incumbent, budget)

    def _improve(self, program: _Program, incumbent: Incumbent, budget: Budget) -> None:
        """Compute prices for the sets so far, and add the most profitable sets at prices between these and the best."""
        budget.work -= program.work
        value, prices = program.solve() or (0.0, self._best_prices)
        if value > self._num_accelerators + 1e-7:
            reach = (self._num_accelerators - self._best_rate) / max(value - self._best_rate, 1e-7)
            trust = min(max(1 - reach, _LEAST_TRUST), _MOST_TRUST)
            for part in (trust, trust / 2, 0.0):
                sets = self._ask(part * self._best_prices + (1 - part) * prices, program, incumbent, budget)
                is_refuted = incumbent.lower_bound > program.limit
                if is_refuted or budget.is_spent or any(prices[list(items)].sum() > 1 + 1e-6 for items in sets):
                    return
            if self._grain < _FINEST_GRAIN:
                self._grain *= _FINER
                return
        self._possible, self._program = program.limit, None

    def _ask(
        self, prices: NDArray[np.float64], program: _Program, incumbent: Incumbent, budget: Budget
    ) -> list[tuple[int, ...]]:
        """Add the most profitable sets to the program, and return them; they raise the bound if none was left out."""
        assert self._frontier is not None
        whole = self._in_integers(prices)
        relief = CpuRelief(self._problem, [max(0, int(price)) for price in whole])
        needed = int(whole.sum()) - relief.within(program.limit)
        least = -(-needed // self._num_accelerators)
        sets = best_sets(self._frontier, whole, program.limit, least, self._most_points)
        if not sets.is_complete:
            self._most_points = min(_MOST_POINTS, int(_MORE * self._most_points))
        budget.work -= sets.work
        if sets.is_complete:
            incumbent.raise_bound(self._refuted(whole, relief, sets, program.limit) + 1)
            most = max(int(sets.profits.max(initial=0)), least, 1)
            if needed > self._best_rate * most:
                self._best_rate, self._best_prices = needed / most, whole / most
        chosen_sets = self._some_of(sets)
        program.add(chosen_sets)
        return chosen_sets

    def _in_integers(self, prices: NDArray[np.float64]) -> Numbers:
        """Prices rounded so that sums over neighbours in the order stay right.

        Sets are few pieces of the order. With each item rounded by itself, 80 items would be wrong by 2 or 3.
        """
        assert self._frontier is not None
        order = [step.item for step in self._frontier]
        whole = np.empty(len(prices), dtype=np.int64)
        whole[order] = np.diff(np.round(np.cumsum(self._grain * prices[order])), prepend=0).astype(np.int64)
        return whole

    def _refuted(self, prices: Numbers, relief: CpuRelief, sets: BestSets, limit: int) -> int:
        """The largest load at which the prices left by CPUs exceed those of the best sets; -1 if there is none."""
        low, high = -1, limit
        while low < high:
            middle = (low + high + 1) // 2
            lighter = int(np.searchsorted(sets.loads, middle, side="right"))
            most = int(sets.profits[lighter - 1]) if lighter else -1
            if not lighter or int(prices.sum()) - relief.within(middle) > self._num_accelerators * most:
                low = middle
            else:
                high = middle - 1
        return low

    def _some_of(self, sets: BestSets) -> list[tuple[int, ...]]:
        """The most profitable set, and some lighter sets."""
        chosen = np.unique(np.linspace(0, len(sets.loads) - 1, _SETS_AT_ONCE).astype(int)) if len(sets.loads) else []
        loads = {tuple(sorted(sets.items(index))): int(sets.loads[index]) for index in chosen}
        self._sets.update(loads)
        return list(loads)


class _Program:
    """The linear program: no set has a price above 1; maximises the price of all items beyond what CPUs can take."""

    def __init__(self, problem: MaxLoadProblem, limit: int) -> None:
        self.limit = limit
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")  # it has no types
        # New sets leave the last basis dual feasible; presolve would start anew, and sometimes gives up.
        self._parameters: Any = pywraplp.MPSolverParameters()
        self._parameters.SetIntegerParam(self._parameters.LP_ALGORITHM, self._parameters.DUAL)
        self._parameters.SetIntegerParam(self._parameters.PRESOLVE, self._parameters.PRESOLVE_OFF)
        self._sets: set[tuple[int, ...]] = set()
        self._size = len(problem.items)
        endless = self._solver.infinity()
        self._prices = [self._solver.NumVar(-1, 1, "") for _ in problem.items]
        num_cpus = sum(device.is_cpu for device in problem.devices)
        room = self._solver.NumVar(0, endless, "")
        objective = self._solver.Objective()
        objective.SetMaximization()
        objective.SetCoefficient(room, -num_cpus)
        for item, price in zip(problem.items, self._prices, strict=True):
            objective.SetCoefficient(price, 1)
            if num_cpus:
                whole = self._solver.NumVar(0, endless, "")
                objective.SetCoefficient(whole, -1)
                constraint = self._solver.Constraint(-endless, 0)
                constraint.SetCoefficient(price, 1)
                constraint.SetCoefficient(room, -item.cpu_cost / max(limit, 1))
                constraint.SetCoefficient(whole, -1)

    @property
    def work(self) -> float:
        """Work of solving it."""
        return _PROGRAM_WORK * self._size * (1 + len(self._sets))

    def add(self, sets: Iterable[tuple[int, ...]]) -> None:
        """Add sets as constraints."""
        for items in dict.fromkeys(sets):
            if items not in self._sets:
                self._sets.add(items)
                constraint = self._solver.Constraint(-self._solver.infinity(), 1)
                for item in items:
                    constraint.SetCoefficient(self._prices[item], 1)

    def solve(self) -> tuple[float, NDArray[np.float64]] | None:
        """The least number of accelerators by the sets so far (fractional), and the prices that prove it.

        None where GLOP gives up, as it does where many items are alike: it then has only prices near the optimum.
        """
        if self._solver.Solve(self._parameters) != pywraplp.Solver.OPTIMAL:
            return None
        return self._solver.Objective().Value(), np.array([price.solution_value() for price in self._prices])


def _longest_intervals(problem: MaxLoadProblem, order: list[int], limit: int) -> Iterator[tuple[int, ...]]:
    """For each item of an order, the longest interval from it on within a load."""
    accelerator = next(index for index, device in enumerate(problem.devices) if not device.is_cpu)
    costs = interval_costs(problem, order, accelerator)
    for begin in range(len(order)):
        ends = np.flatnonzero(costs[begin, begin + 1 :] <= limit)
        if len(ends):
            yield tuple(sorted(order[begin : begin + 1 + int(ends[-1])]))
