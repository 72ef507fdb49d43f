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
"""How much of the best load known one coarse item may weigh."""

_DIVES = 0.7
_FEWEST_DIVES = 0.1
"""The part of the work that goes into dives; the rest improves what is known. It becomes less, down to this, after each
round in which only improving was of use."""

_TRAJECTORIES = 2
_STEP_WORK = 0.5


class FreeSearch:
    """Works in rounds, from what is known when they begin and from what it found itself.

    Attributes:
        budget: What is left of it.
    """

    def __init__(self, problem: MaxLoadProblem, budget: Budget) -> None:
        """Nothing is done yet."""
        self._problem = problem
        self._diver: Diver | None = None
        self._starts: dict[tuple[int, ...], int] = {}
        self._trajectories: list[Neighbourhood] = []
        self._dives = _DIVES
        self.budget = budget

    def run(self, incumbent: Incumbent, known: MaxLoadAnswer, upper_bound: int, work: float) -> None:
        """Search for so much work; what is found goes to the incumbent."""
        if known.assignment is not None:
            self._starts[known.assignment] = upper_bound
        if self._diver is None:
            heaviest = int(_HEAVIEST * upper_bound)
            self._diver = Diver(self._problem, heaviest, self._problem.seed, self.budget)
            self._place_coarsely(incumbent, known.lower_bound, upper_bound, heaviest)
        known_load = min(self._starts.values(), default=upper_bound)
        found = self._diver.run(incumbent, known.lower_bound, upper_bound, self.budget, self._dives * work)
        self._note(incumbent, found)
        best = sorted(self._starts, key=lambda start: self._starts[start])[:_TRAJECTORIES]
        dived_to = min(self._starts.values(), default=upper_bound)
        for trajectory in self._trajectories:
            if best and trajectory.load > self._starts[best[0]]:
                trajectory.restart(best[0])
        if not self._trajectories:
            seed = self._problem.seed
            self._trajectories = [Neighbourhood(self._problem, start, seed + i) for i, start in enumerate(best)]
        # The last dive may have taken more than its part.
        self._improve(incumbent, (1 - self._dives) * work)
        improved_to = min((trajectory.load for trajectory in self._trajectories), default=upper_bound)
        only_improving = improved_to < dived_to == known_load
        self._dives = max(_FEWEST_DIVES, self._dives / 2) if only_improving else _DIVES

    def _note(self, incumbent: Incumbent, found: Mapping[tuple[int, ...], str]) -> None:
        for assignment, method in found.items():
            if not any(violations(self._problem, assignment)):
                self._starts[assignment] = max(loads(self._problem, assignment))
                incumbent.offer(assignment, method)

    def _place_coarsely(self, incumbent: Incumbent, lower_bound: int, upper_bound: int, heaviest: int) -> None:
        if len(self._problem.items) <= _COARSE:
            return
        coarse = coarsen(self._problem, _COARSE, heaviest)
        found = Incumbent(coarse.problem, lambda _: None)
        model = FreeModel(coarse.problem, lower_bound, 2 * upper_bound)
        model.open_devices_in_order()
        model.minimise_largest()
        run_model(model, found, self.budget, work=_COARSE_WORK, seed=self._problem.seed, method="")
        if found.assignment is not None:
            self._note(incumbent, {coarse.lift(found.assignment): f"CP-SAT on {len(coarse.problem.items)} items"})

    def _improve(self, incumbent: Incumbent, work: float) -> None:
        """Let each trajectory work on its own; then the worse go on from the best."""
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
