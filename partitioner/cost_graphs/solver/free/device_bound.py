"""Bounds from a single accelerator: the least load with an item, and the least load with its share of all work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.graph.python import max_flow
from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.bounds import CpuRelief
from partitioner.cost_graphs.solver.cp_sat import make_solver
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.problem import MaxLoadProblem

_MAX_FLOWS = 256
_MAX_TOGETHER = 8
_COUNT_WORK = 0.5
_SHARE_WORK = 1.5
_BISECTIONS = 7


def raise_by_items(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    """Raise the bound by the cheapest surroundings of the most expensive items, each a minimum cut.

    An accelerator with an item has at least the load of its cheapest surroundings. Below that load, this item and all
    items with more expensive surroundings are on CPUs; CPUs may not have room for them.
    """
    accelerators = problem.accelerators
    cpus = frozenset(range(len(problem.devices))) - accelerators
    if not accelerators:
        return
    arcs = _cut_arcs(problem)
    costs = [item.accelerator_cost for item in problem.items]
    for value in problem.values:
        for index in value.items:
            costs[index] += value.cost
    movable = [index for index, item in enumerate(problem.items) if not accelerators <= item.barred]
    flows = sorted(movable, key=lambda index: -costs[index])[:_MAX_FLOWS]
    on_cpus = sum(item.cpu_cost for item in problem.items if accelerators <= item.barred)
    surroundings = [(_cheapest_surroundings(problem, arcs, index), index) for index in flows]
    for bound, index in sorted(surroundings, reverse=True):
        if cpus <= problem.items[index].barred:
            incumbent.raise_bound(bound)
            break
        cost = problem.items[index].cpu_cost
        on_cpus += cost
        incumbent.raise_bound(min(bound, max(-(-on_cpus // len(cpus)), cost)))


def _cut_arcs(problem: MaxLoadProblem) -> tuple[list[int], list[int], list[int]]:
    """Tails, heads and capacities: a value is a pair of nodes, and the arc between them has its cost."""
    size, endless = len(problem.items), sum(value.cost for value in problem.values) * 4 + 1
    tails, heads, costs = [], [], []

    def arc(tail: int, head: int, cost: int) -> None:
        tails.append(tail)
        heads.append(head)
        costs.append(cost)

    sink = size + 2 * len(problem.values)
    for index, value in enumerate(problem.values):
        enter, leave = size + 2 * index, size + 2 * index + 1
        arc(enter, leave, value.cost)
        for item in value.items:
            arc(item, enter, endless)
            arc(leave, item, endless)
    for index, item in enumerate(problem.items):
        arc(index, sink, item.accelerator_cost)
    return tails, heads, costs


def _cheapest_surroundings(problem: MaxLoadProblem, arcs: tuple[list[int], list[int], list[int]], item: int) -> int:
    flow: Any = max_flow.SimpleMaxFlow()  # its stubs take no arrays
    flow.add_arcs_with_capacity(*map(np.array, arcs))
    status = flow.solve(item, len(problem.items) + 2 * len(problem.values))
    return flow.optimal_flow() if status == flow.OPTIMAL else 0


def raise_by_counts(problem: MaxLoadProblem, incumbent: Incumbent, upper_bound: int, budget: Budget) -> None:
    """Raise the bound by the pigeonhole principle: of many heavy items, some accelerator has 2, 3 or 4."""
    num_accelerators = sum(not device.is_cpu for device in problem.devices)
    heavy = sorted(range(len(problem.items)), key=lambda item: -problem.items[item].accelerator_cost)
    for together in range(2, _MAX_TOGETHER + 1):
        if incumbent.is_settled or not num_accelerators or budget.is_spent:
            return
        count = num_accelerators * (together - 1) + 1
        while (
            count <= len(heavy)
            and _least_per_accelerator(problem, _ones(problem, heavy[:count]), upper_bound) < together
        ):
            count += 1
        if count > len(heavy):
            return
        model = _OneAccelerator(problem)
        model.cp.add(model.profit(_ones(problem, heavy[:count])) >= together)
        model.cp.add(model.load <= upper_bound)
        model.cp.minimize(model.load)
        status, bound = model.solve(_COUNT_WORK, budget)
        incumbent.raise_bound(upper_bound if status == cp_model.INFEASIBLE else bound)


class DeviceBound:
    """Bisects for the least load at which accelerators can do all the work, if each does the most that any can."""

    def __init__(self, problem: MaxLoadProblem) -> None:
        """Start without work."""
        self._problem = problem
        self._work = [item.accelerator_cost for item in problem.items]
        self._possible: int | None = None
        can_tell = any(self._work) and not all(device.is_cpu for device in problem.devices)
        self._left = _BISECTIONS if can_tell else 0

    def run(self, incumbent: Incumbent, upper_bound: int, budget: Budget, work: float) -> None:
        """Raise the bound in steps of limited work, while steps are left."""
        end = budget.work - work
        while self._left and budget.work - end >= _SHARE_WORK and not (incumbent.is_settled or budget.is_spent):
            self._left -= 1
            low, high = incumbent.lower_bound, min(self._possible or upper_bound, upper_bound)
            if high - low <= 1:
                return
            middle = (low + high) // 2
            model = _OneAccelerator(self._problem)
            model.cp.add(model.load <= middle)
            model.cp.maximize(model.profit(self._work))
            status, most = model.solve(_SHARE_WORK, budget)
            has_bound = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
            if has_bound and most < _least_per_accelerator(self._problem, self._work, middle):
                incumbent.raise_bound(middle + 1)
            else:
                self._possible = middle


def _ones(problem: MaxLoadProblem, items: Sequence[int]) -> list[int]:
    chosen = set(items)
    return [int(item in chosen) for item in range(len(problem.items))]


def _least_per_accelerator(problem: MaxLoadProblem, prices: Sequence[int], load: int) -> int:
    """The least price of the items on some accelerator, if CPUs take the most they can within a load."""
    num_accelerators = sum(not device.is_cpu for device in problem.devices)
    left = sum(prices) - CpuRelief(problem, prices).within(load)
    return -(-left // num_accelerators)


class _OneAccelerator:
    """A single accelerator in CP-SAT: its items, and their load."""

    def __init__(self, problem: MaxLoadProblem) -> None:
        self.cp = cp_model.CpModel()
        self.inside = [self.cp.new_bool_var("") for _ in problem.items]
        terms = [item.accelerator_cost * here for item, here in zip(problem.items, self.inside, strict=True)]
        for value in problem.values:
            pays = self.cp.new_bool_var("")
            for a, b in zip(value.items, (*value.items[1:], value.items[0]), strict=True):
                self.cp.add_bool_or(~self.inside[a], self.inside[b], pays)
            terms.append(value.cost * pays)
        self.load = sum(terms)
        accelerators = problem.accelerators
        for item, here in zip(problem.items, self.inside, strict=True):
            if accelerators <= item.barred:
                self.cp.add_bool_or(~here)

    def profit(self, prices: Sequence[int]) -> cp_model.LinearExprT:
        """The sum of the prices of its items."""
        return sum(price * here for price, here in zip(prices, self.inside, strict=True) if price)

    def solve(self, work: float, budget: Budget) -> tuple[cp_model.CpSolverStatus, int]:
        """Status of the search, and bound of the objective."""
        solver = make_solver(work=min(work, budget.work), seconds=budget.seconds)
        solver.parameters.linearization_level = 2
        status = solver.solve(self.cp)
        budget.work -= solver.response_proto.deterministic_time
        return status, round(solver.best_objective_bound)
