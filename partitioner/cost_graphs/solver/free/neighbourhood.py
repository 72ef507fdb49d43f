"""Large-neighbourhood search: take the busiest device and a few others, and place their items anew with CP-SAT."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.cp_sat import make_solver
from partitioner.cost_graphs.solver.free.model import ELSEWHERE, FreeModel
from partitioner.cost_graphs.solver.loads import loads
from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import merge

_LEAST_WORK = 0.005
"""The least work of a step, in CP-SAT's deterministic units: building its model takes time too."""

_FREE, _LEAST_FREE, _MOST_FREE = 120, 40, 600
_MORE, _LESS = 1.25, 0.8
"""Number of items placed anew: more after a step that soon proved its optimum, fewer after a step that was cut off."""

_SOON = 0.2


class Neighbourhood:
    """A trajectory of improvements from a start. Its steps depend only on the seed.

    Attributes:
        assignment: The best assignment so far.
        load: Its largest load.
        work: Deterministic work done, in CP-SAT's units.
    """

    def __init__(self, problem: MaxLoadProblem, assignment: Sequence[int], seed: int) -> None:
        self._problem = problem
        self._random = random.Random(seed)
        self._max_free = _FREE
        self._touching: list[list[int]] = [[] for _ in problem.items]
        for index, value in enumerate(problem.values):
            for item in value.items:
                self._touching[item].append(index)
        self._failures = 0
        self.work = 0.0
        self.restart(assignment)

    def restart(self, assignment: Sequence[int]) -> None:
        """Go on from another assignment."""
        self.assignment = tuple(assignment)
        self._loads = loads(self._problem, self.assignment)
        self.load = max(self._loads)

    def step(self, work: float, seconds: float) -> bool:
        """Place some items anew within limits of work and time; returns whether the largest load became smaller."""
        devices = self._some_devices()
        free = self._some_items(devices)
        moved = self._placed_anew(devices, free, work, seconds)
        self._failures += 1
        if moved is None:
            return False
        now = loads(self._problem, moved)
        is_better = max(now) < self.load
        if (sorted(now, reverse=True), sum(now)) < (sorted(self._loads, reverse=True), sum(self._loads)):
            self.assignment, self._loads, self.load = moved, now, max(now)
        if is_better:
            self._failures = 0
        return is_better

    def _some_devices(self) -> list[int]:
        """The busiest device and one to three others, preferably with small loads; more after many failures."""
        busiest = self._loads.index(self.load)
        others = [device for device in range(len(self._loads)) if device != busiest]
        count = 1 if self._failures < 4 else 2 if self._failures < 12 else self._random.choice((2, 3))
        chosen = [busiest]
        for _ in range(min(count, len(others))):
            weights = [
                (self.load - self._loads[d] + 0.02 * self.load + 1) * (0.3 if self._problem.devices[d].is_cpu else 1)
                for d in others
            ]
            chosen.append(self._random.choices(others, weights)[0])
            others.remove(chosen[-1])
        return chosen

    def _some_items(self, devices: Sequence[int]) -> list[int]:
        """The items of these devices; if there are too many, those near the border between them."""
        there = [item for item, device in enumerate(self.assignment) if device in devices]
        if len(there) <= self._max_free:
            return there
        inside = set(there)
        border = [item for item in there if self._is_at_border(item, inside)] or there
        self._random.shuffle(border)
        queue = border[: max(1, len(border) // self._random.choice((1, 3)))][: self._max_free]
        free = dict.fromkeys(queue)
        for item in queue:  # grows during the loop
            for index in self._touching[item]:
                for other in self._problem.values[index].items:
                    if other in inside and other not in free and len(free) < self._max_free:
                        free[other] = None
                        queue.append(other)
        return sorted(free)

    def _is_at_border(self, item: int, inside: set[int]) -> bool:
        home = self.assignment[item]
        neighbours = (other for index in self._touching[item] for other in self._problem.values[index].items)
        return any(self.assignment[other] != home and other in inside for other in neighbours)

    def _placed_anew(
        self, devices: Sequence[int], free: Sequence[int], work: float, seconds: float
    ) -> tuple[int, ...] | None:
        # Fixed items are merged: into an item per chosen device, and an item for all other devices.
        size, chosen = len(self._problem.items), set(free)
        stays = {device: size + device for device in range(len(self._loads))}
        elsewhere = size + len(self._loads)
        labels = [
            item if item in chosen else stays[device] if device in devices else elsewhere
            for item, device in enumerate(self.assignment)
        ]
        merged = merge(self._problem, labels)
        fixed = {
            label: device if device in devices else ELSEWHERE
            for item, (label, device) in enumerate(zip(merged.label, self.assignment, strict=True))
            if item not in chosen
        }
        model = FreeModel(merged.problem, 0, self.load, devices=devices, fixed=fixed)
        model.minimise_all()
        before = dict(zip(merged.label, self.assignment, strict=True))
        model.hint([before[label] for label in range(len(merged.problem.items))])
        solver = make_solver(work=work, seconds=seconds, seed=self._random.randrange(2**31))
        status = solver.solve(model.cp)
        self.work += max(solver.response_proto.deterministic_time, _LEAST_WORK)
        if status == cp_model.OPTIMAL:
            if solver.response_proto.deterministic_time < _SOON * work:
                self._max_free = min(_MOST_FREE, int(_MORE * self._max_free))
        else:
            self._max_free = max(_LEAST_FREE, int(_LESS * self._max_free))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        lifted = merged.lift(model.assignment(solver))
        return tuple(
            device if item in chosen else home
            for item, (device, home) in enumerate(zip(lifted, self.assignment, strict=True))
        )
