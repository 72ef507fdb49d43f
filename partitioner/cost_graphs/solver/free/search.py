"""The search of free placements: dives, CP-SAT on a coarser graph, and large neighbourhoods, in turns."""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.cost_graphs.solver.cp_sat import run_model
from partitioner.cost_graphs.solver.free.dive import Diver
from partitioner.cost_graphs.solver.free.model import FreeModel
from partitioner.cost_graphs.solver.free.neighbourhood import Neighbourhood
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.coarsen import coarsen

_COARSE = 70
_COARSE_WORK = 1.5
_HEAVIEST = 0.35
"""The largest cost of a coarse item, as a part of the incumbent's load."""

_DIVES = 0.7
_FEWEST_DIVES = 0.1
"""The part of the work for dives; the rest improves earlier placements. It shrinks, down to this minimum, after each
round in which only improving helped."""

_TRAJECTORIES = 2
_STEP_WORK = 0.5


class FreeSearch:
    """Works in rounds, each from the answer at its start and from its own placements.

    Attributes:
        budget: The remaining budget.
    """

    def __init__(self, problem: MaxLoadProblem, budget: Budget) -> None:
        """Start without work."""
        self._problem = problem
        self._diver: Diver | None = None
        self._starts: dict[tuple[int, ...], int] = {}
        self._trajectories: list[Neighbourhood] = []
        self._dives = _DIVES
        self.budget = budget

    def run(self, incumbent: Incumbent, answer: MaxLoadAnswer, upper_bound: int, work: float) -> None:
        """Search for an amount of work; placements are offered to the incumbent."""
        if answer.assignment is not None:
            self._starts[answer.assignment] = upper_bound
        if self._diver is None:
            heaviest = int(_HEAVIEST * upper_bound)
            self._diver = Diver(self._problem, heaviest, self._problem.seed, self.budget)
            self._place_coarsely(incumbent, answer.lower_bound, upper_bound, heaviest)
        start_load = min(self._starts.values(), default=upper_bound)
        dives = self._diver.run(incumbent, answer.lower_bound, upper_bound, self.budget, self._dives * work)
        self._note(incumbent, dives)
        best = sorted(self._starts, key=lambda start: self._starts[start])[:_TRAJECTORIES]
        dived_to = min(self._starts.values(), default=upper_bound)
        for trajectory in self._trajectories:
            if best and trajectory.load > self._starts[best[0]]:
                trajectory.restart(best[0])
        if not self._trajectories:
            seed = self._problem.seed
            self._trajectories = [Neighbourhood(self._problem, start, seed + i) for i, start in enumerate(best)]
        # The last dive may have used more than its part.
        self._improve(incumbent, (1 - self._dives) * work)
        improved_to = min((trajectory.load for trajectory in self._trajectories), default=upper_bound)
        only_improving = improved_to < dived_to == start_load
        self._dives = max(_FEWEST_DIVES, self._dives / 2) if only_improving else _DIVES

    def _note(self, incumbent: Incumbent, placements: Mapping[tuple[int, ...], str]) -> None:
        for assignment, method in placements.items():
            if not any(violations(self._problem, assignment)):
                self._starts[assignment] = max(loads(self._problem, assignment))
                incumbent.offer(assignment, method)

    def _place_coarsely(self, incumbent: Incumbent, lower_bound: int, upper_bound: int, heaviest: int) -> None:
        if len(self._problem.items) <= _COARSE:
            return
        coarse = coarsen(self._problem, _COARSE, heaviest)
        best_coarse = Incumbent(coarse.problem, lambda _: None)
        model = FreeModel(coarse.problem, lower_bound, 2 * upper_bound)
        model.open_devices_in_order()
        model.minimise_largest()
        run_model(model, best_coarse, self.budget, work=_COARSE_WORK, seed=self._problem.seed, method="")
        if best_coarse.assignment is not None:
            self._note(incumbent, {coarse.lift(best_coarse.assignment): f"CP-SAT on {len(coarse.problem.items)} items"})

    def _improve(self, incumbent: Incumbent, work: float) -> None:
        """Improve each trajectory by itself; then the worse trajectories restart from the best."""
        for trajectory in self._trajectories:
            end = trajectory.work + work / len(self._trajectories)
            while trajectory.work < end and not (incumbent.is_settled or self.budget.is_spent):
                before = trajectory.work
                if trajectory.step(min(_STEP_WORK, end - before), self.budget.seconds):
                    incumbent.offer(trajectory.assignment, "large neighbourhoods")
                self.budget.work -= trajectory.work - before
        best = min(self._trajectories, key=lambda trajectory: trajectory.load, default=None)
        for trajectory in self._trajectories:
            if best is not None and trajectory is not best:
                trajectory.restart(best.assignment)
