"""Contiguous pieces in CP-SAT: for each item and stage, whether the item comes in that stage or later."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.bounds import CpuRelief
from partitioner.cost_graphs.solver.contiguous.downsets import work_before
from partitioner.cost_graphs.solver.loads import assign_pieces, device_groups, device_order
from partitioner.cost_graphs.solver.problem import MaxLoadProblem


class StageModel:
    """Stages in a chain, each on a device of some group; each item is in a stage, not before its predecessors.

    Attributes:
        cp: The model, which minimises the largest load.
        max_load: The largest load.
    """

    def __init__(self, problem: MaxLoadProblem, lower_bound: int, upper_bound: int) -> None:
        """Model the problem, whose `precedes` must have no cycle; loads above `upper_bound` are left out."""
        self._problem = problem
        self.cp = cp_model.CpModel()
        self.max_load = self.cp.new_int_var(min(lower_bound, upper_bound), upper_bound, "")
        self._groups = device_groups(problem)
        self._num_stages = len(problem.devices)
        self._every_stage_has_a_group()
        self._every_item_has_a_stage()
        self._stages_wait_for_what_precedes()
        self._work_takes_stages(upper_bound)
        for stage in range(self._num_stages):
            self._load_of(stage)
        self.cp.minimize(self.max_load)

    def _every_stage_has_a_group(self) -> None:
        self._of_group = [[self.cp.new_bool_var("") for _ in self._groups] for _ in range(self._num_stages)]
        for groups in self._of_group:
            self.cp.add_exactly_one(groups)
        for index, group in enumerate(self._groups):
            self.cp.add(sum(groups[index] for groups in self._of_group) == len(group))

    def _every_item_has_a_stage(self) -> None:
        true, false = self.cp.new_constant(1), self.cp.new_constant(0)
        self._from, self._in = [], []
        for _ in self._problem.items:
            later = [self.cp.new_bool_var("") for _ in range(self._num_stages - 1)]
            reaches = [true, *later, false]
            inside = [self.cp.new_bool_var("") for _ in range(self._num_stages)]
            for stage, here in enumerate(inside):
                self.cp.add_implication(reaches[stage + 1], reaches[stage])
                self.cp.add_implication(here, reaches[stage])
                self.cp.add_implication(here, ~reaches[stage + 1])
                self.cp.add_bool_or(here, ~reaches[stage], reaches[stage + 1])
            self.cp.add_exactly_one(inside)
            self._from.append(reaches)
            self._in.append(inside)

    def _stages_wait_for_what_precedes(self) -> None:
        for a, b in self._problem.precedes:
            for stage in range(1, self._num_stages):
                self.cp.add_implication(self._from[a][stage], self._from[b][stage])

    def _work_takes_stages(self, upper_bound: int) -> None:
        """Redundant: an item and its predecessors need a number of stages even if moving values is free."""
        relief = CpuRelief(self._problem, [item.accelerator_cost for item in self._problem.items])
        most = max(upper_bound, relief.within(upper_bound))
        if not most:
            return
        pairs = self._problem.precedes
        for item, work in enumerate(work_before(self._problem, pairs)):
            self.cp.add_bool_or(self._from[item][min(-(-work // most) or 1, self._num_stages) - 1])
        for item, work in enumerate(work_before(self._problem, [(b, a) for a, b in pairs])):
            self.cp.add_bool_or(~self._from[item][self._num_stages - min(-(-work // most) or 1, self._num_stages) + 1])

    def _load_of(self, stage: int) -> None:
        problem = self._problem
        inside = [stages[stage] for stages in self._in]
        moved = []
        for value in problem.values:
            pays = self.cp.new_bool_var("")
            # If some of its items are inside and some not, then in a circle of them, inside is followed by outside.
            for a, b in zip(value.items, (*value.items[1:], value.items[0]), strict=True):
                self.cp.add_bool_or(~inside[a], inside[b], pays)
            moved.append((value.cost, pays))
        for group, chosen in zip(self._groups, self._of_group[stage], strict=True):
            device = problem.devices[group[0]]
            terms = [item.cost_on(device) * here for item, here in zip(problem.items, inside, strict=True)]
            if not device.is_cpu:
                terms += [cost * pays for cost, pays in moved]
            for item, here in zip(problem.items, inside, strict=True):
                if group[0] in item.barred:
                    self.cp.add_implication(chosen, ~here)
            self.cp.add(sum(terms) <= self.max_load).only_enforce_if(chosen)
            held = sum(item.memory_bytes for item in problem.items)
            if device.capacity_bytes is not None and held > device.capacity_bytes:
                memory = [item.memory_bytes * here for item, here in zip(problem.items, inside, strict=True)]
                self.cp.add(sum(memory) <= device.capacity_bytes).only_enforce_if(chosen)

    def hint(self, assignment: Sequence[int]) -> None:
        """Start from a contiguous assignment."""
        order = device_order(self._problem, assignment)
        assert order is not None
        stage_of = {device: stage for stage, device in enumerate(order)}
        for item, device in enumerate(assignment):
            for stage in range(1, self._num_stages):
                self.cp.add_hint(self._from[item][stage], stage_of[device] >= stage)
            for stage in range(self._num_stages):
                self.cp.add_hint(self._in[item][stage], stage_of[device] == stage)
        for stage, device in enumerate(order):
            for index, group in enumerate(self._groups):
                self.cp.add_hint(self._of_group[stage][index], device in group)

    def assignment(self, solver: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> tuple[int, ...]:
        """The assignment of a solution."""
        pieces = []
        for stage in range(self._num_stages):
            group = next(g for g, chosen in enumerate(self._of_group[stage]) if solver.value(chosen))
            pieces.append((group, [item for item, stages in enumerate(self._in) if solver.value(stages[stage])]))
        return assign_pieces(self._problem, pieces)
