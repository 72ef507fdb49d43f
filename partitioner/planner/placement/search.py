"""Search placements of the step as one graph: simple ones, the solver's, and their neighbours, all simulated.

`pipeline/search.py` does the same for the step in stages and microbatches; `layouts/search.py` has the better of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import contains

import numpy as np

from partitioner.constraints.conflicts import overfull
from partitioner.deadline import LOCAL_SEARCH_OPS_PER_SECOND, MAX_LOCAL_SEARCH_OPS, Deadline
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.op_graph import Phase
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.model.assignment import Assignment, adjacent_items
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.item_bytes import item_bytes, variable_item_bytes
from partitioner.planner.model.tolerances import AS_FAST, BALANCE_PERMILLE, PEAK_ROOM
from partitioner.planner.placement import baselines
from partitioner.planner.placement.evaluator import Evaluation, PlacementEvaluator
from partitioner.planner.placement.local_search import Key, local_search
from partitioner.planner.placement.neighbours import moved_ends, single_changes
from partitioner.planner.placement.problem import placement_problem
from partitioner.planner.placement.solver_rounds import MEMORY_ROUNDS, answers

_MEMORY_ONLY_PERMILLE = 10**6
_MOST_GAIN = 1.15
"""Local search shortened steps by up to 13 % (all searches of the 37 golden plans)."""
_MOST_CUTS = 6
"""Cuts that fit and whose ends are moved: more devices rarely help where fewer did not."""
_REACH = 1.05
"""Of its starts that were slower than the best by more, 4 of 114 led to a better one, by at most 0.6 % (the same)."""
_MOST_LATE = 8
"""Starts that are evaluated though no time is left, where none fits."""


@dataclass(frozen=True, kw_only=True)
class SolverSummary:
    """What the solver said: its answers, the seconds of all its rounds, the last status and note."""

    answers: tuple[Assignment, ...] = ()
    seconds: float = 0.0
    status: str = "optimal"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PlacementSearch:
    """Placements of the items of a step that runs as one graph.

    Attributes:
        costed: The step, its costs and its topology, which holds the memory limits.
        coarsening: The items.
        evaluator: Simulates placements, and keeps their evaluations.
        strategy: How many devices a placement uses.
        objective: Whether the step time or the largest peak is minimised.
        time_limit_seconds: Decides how many placements local search may look at.
        deadline: When the search ends with what it has.
        seed: For the solver.
        known_seconds: The step of another layout: what takes much longer is not improved.
    """

    costed: CostedGraph
    coarsening: Coarsening
    evaluator: PlacementEvaluator
    strategy: Strategy
    objective: Objective
    time_limit_seconds: float
    deadline: Deadline
    seed: int
    known_seconds: float = math.inf

    def baselines(self) -> dict[str, Assignment]:
        """Simple placements that a plan is compared with, by name; they ignore constraints and memory."""
        devices = self.costed.topology.devices
        assignments = {
            f"single-device {short_name(devices[d].name)}": baselines.single_device(self.coarsening, d)
            for d in self._distinct_devices()
        }
        if len(devices) > 1:
            assignments["equal-layers"] = baselines.equal_layers(self.coarsening, len(devices))
            assignments["greedy-by-bytes"] = baselines.greedy_by_bytes(self.costed, self.coarsening, len(devices))
        return assignments

    def starts(self) -> list[Assignment]:
        """Placements that obey the constraints, as starts for the solver and the local search."""
        counts = range(2, len(self._room) + 1)
        consecutive = baselines.balanced_compute(self.costed, self.coarsening, *counts)
        return self.repaired([*self.baselines().values(), *consecutive])

    def repaired(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """The placements with items moved to devices that they are allowed on, each once."""
        places = self.coarsening.allowed
        made = [
            tuple(device if device in places[item] else min(places[item]) for item, device in enumerate(assignment))
            for assignment in assignments
        ]
        return list(dict.fromkeys(made))

    @property
    def evaluations(self) -> list[Evaluation]:
        """Evaluated placements that constraints and strategy allow."""
        return [made for made in self.evaluator.evaluations.values() if self._is_allowed(made.assignment)]

    @property
    def fitting(self) -> list[Evaluation]:
        """Those that fit."""
        return [evaluation for evaluation in self.evaluations if evaluation.fits]

    def run(self, starts: Sequence[Assignment], found: Callable[[], object]) -> SolverSummary:
        """Evaluate placements: starts, the solver's answers, and neighbours of both; `found` is called in between."""
        self._evaluate_until_one_fits(starts)
        seconds, status, note = 0.0, "optimal", ""
        solved: list[Assignment] = []
        problem = placement_problem(
            self.costed,
            self.coarsening,
            capacities_bytes=self._room,
            use_every_device=self.strategy is Strategy.LAYER_SPLIT,
            balance_permille=(_MEMORY_ONLY_PERMILLE if self.objective is Objective.MEMORY else BALANCE_PERMILLE),
            hints=starts,
            time_limit_seconds=self.time_limit_seconds,
            seed=self.seed,
        )
        for result in answers(problem, self.costed, self.coarsening, self.evaluator, self.deadline):
            seconds += result.solution.seconds
            status, note = result.solution.status, result.note
            if result.solution.assignment is not None:
                solved.append(result.solution.assignment)
                self._search_fitting(result.solution.assignment)
            found()
        self._improve([*starts, *solved])
        found()
        return SolverSummary(answers=tuple(solved), seconds=seconds, status=status, note=note)

    def improve_cuts(self, cuts: Sequence[Assignment], order: Sequence[int]) -> None:
        """Move the ends of consecutive parts, into which each of `cuts` cuts this order of the items.

        Once a few fit, those behind them are left.
        """
        tried, num_fitting = list[Assignment](), 0
        for cut in filter(self._is_allowed, self.repaired(cuts)):
            if self.deadline.is_over or num_fitting == _MOST_CUTS:
                break
            tried.append(cut)
            num_fitting += self.evaluator(cut).fits
        self._improve(tried, partial(moved_ends, order=order))

    def best(self, compared: Sequence[Evaluation]) -> Evaluation:
        """The best evaluation that fits, with devices in the order in which layers use them.

        For throughput: of the placements within the tolerance of the fastest, and no slower than any baseline
        (`compared`) that fits, those whose largest peak is close to the least; of these, the placement that sends the
        fewest bytes.
        """
        eligible = self.fitting
        if self.objective is Objective.MEMORY:
            return self._in_order(min(eligible, key=self.objective_key))
        limit = min(evaluation.step_seconds for evaluation in eligible) * AS_FAST
        kept = [self.evaluator(baseline.assignment) for baseline in compared]  # in the better order
        limit = min([limit, *(evaluation.step_seconds for evaluation in kept if evaluation in eligible)])
        as_fast = [evaluation for evaluation in eligible if evaluation.step_seconds <= limit]
        room_bytes = min(evaluation.largest_peak_bytes for evaluation in as_fast) * PEAK_ROOM

        def sent(evaluation: Evaluation) -> Key:
            if not (
                evaluation.fits and evaluation.step_seconds <= limit and evaluation.largest_peak_bytes <= room_bytes
            ):
                return (float("inf"),)
            return (evaluation.sent_bytes, evaluation.largest_peak_bytes, evaluation.step_seconds)

        def least(step_seconds: float) -> Key:
            return (float("inf"),) if step_seconds > limit else ()

        start = min(as_fast, key=sent).assignment
        if limit <= self.known_seconds * AS_FAST:
            start = self._local_search(start, sent, share=0.5, least_key=least)
        return self._in_order(self.evaluator(start))

    def objective_key(self, evaluation: Evaluation) -> Key:
        """What is minimised, after memory beyond the limits."""
        if self.objective is Objective.MEMORY:
            return (evaluation.over_bytes, evaluation.largest_peak_bytes, evaluation.step_seconds)
        return (evaluation.over_bytes, evaluation.step_seconds, evaluation.largest_peak_bytes)

    @property
    def has_variables_too_large(self) -> bool:
        """Whether the variables alone do not fit, in any placement and any pipeline."""
        sizes = variable_item_bytes(self.costed, self.coarsening)
        return overfull(sizes, self.coarsening.allowed, self._room) is not None

    @property
    def is_too_large(self) -> bool:
        """Whether what a step keeps of the whole batch does not fit, in any placement."""
        return overfull(self._least_bytes, self.coarsening.allowed, self._room) is not None

    def closest(self, count: int) -> list[Evaluation]:
        """Those of the allowed placements that pass limits the least."""
        for assignment in self.baselines().values():  # replicas have not evaluated them yet
            self.evaluator(assignment)
        return sorted(self.evaluations, key=lambda evaluation: evaluation.over_bytes)[:count]

    @property
    def _room(self) -> list[int]:
        return [placed.memory_bytes for placed in self.costed.topology.devices]

    def _is_allowed(self, assignment: Assignment) -> bool:
        num_used = len(set(assignment))
        allowed = {
            Strategy.SINGLE: num_used == 1,
            Strategy.LAYER_SPLIT: num_used == len(self._room),
            Strategy.AUTO: True,
        }[self.strategy]
        return allowed and all(map(contains, self.coarsening.allowed, assignment))

    def _distinct_devices(self) -> list[int]:
        """One device of each kind: identical devices give identical baselines, unless their constraints differ."""
        kinds: dict[object, int] = {}
        for index, placed in enumerate(self.costed.topology.devices):
            barred = frozenset(item for item, places in enumerate(self.coarsening.allowed) if index not in places)
            kinds.setdefault((placed.device.name, placed.memory_bytes, barred), index)
        return list(kinds.values())

    def _evaluate_until_one_fits(self, starts: Sequence[Assignment]) -> None:
        """Evaluate starts, those on few devices first: where memory is short, the solver may take all the time.

        There, equal bytes on each device count as starts too, and those are left out that keep too much somewhere.
        """
        counts = range(2, len(self._room) + 1)
        alike = self.repaired(baselines.balanced_bytes(self.costed, self.coarsening, *counts))
        allowed = filter(self._is_allowed, dict.fromkeys([*starts, *alike]))
        for start in sorted(filter(self._may_fit, allowed), key=lambda start: len(set(start))):
            if self.deadline.is_over or self.evaluator(start).fits:
                return

    def _may_fit(self, assignment: Assignment) -> bool:
        """Whether what items keep at the least is within all limits."""
        return self._largest_share(assignment) <= 1

    def _largest_share(self, assignment: Assignment) -> float:
        """What items keep at the least on the fullest device, as a share of its limit."""
        held = np.bincount(assignment, self._least_bytes, minlength=len(self._room))
        return float((held / np.maximum(self._room, 1)).max())

    @cached_property
    def _least_bytes(self) -> list[int]:
        return item_bytes(self.costed, self.coarsening, at_least=True)

    def _search_fitting(self, start: Assignment) -> None:
        """Local search from a placement until some placement fits, unless one fits already."""

        def over(evaluation: Evaluation) -> Key | None:
            return None if self.fitting else (evaluation.over_bytes, evaluation.largest_peak_bytes)

        self._local_search(start, over, share=1 / (1 + MEMORY_ROUNDS))

    def _improve(
        self,
        starts: Sequence[Assignment],
        neighbours: Callable[[Assignment], Iterable[Assignment]] | None = None,
    ) -> None:
        """Local search from every start within reach, the best first, each with half of the allowance that is left.

        With no time left, some starts that may fit are evaluated until one does, those with the most room first.
        """
        allowed, late = [], list[Assignment]()
        for start in filter(self._is_allowed, dict.fromkeys(starts)):
            if self.deadline.is_over:
                late.append(start)
            else:
                allowed.append(self.evaluator(start))
        for start in sorted(filter(self._may_fit, late), key=self._largest_share)[:_MOST_LATE]:
            if not self.fitting:
                allowed.append(self.evaluator(start))
        for rank, evaluation in enumerate(sorted(allowed, key=self.objective_key)):
            if self._is_in_reach(evaluation):
                self._local_search(
                    evaluation.assignment,
                    self.objective_key,
                    neighbours=neighbours,
                    share=2.0 ** -(rank + 1),
                    least_key=self._least_key,
                )

    def _is_in_reach(self, evaluation: Evaluation) -> bool:
        """Whether local search may lead from a placement to one that is better than all that is known."""
        if self.objective is Objective.MEMORY or not evaluation.fits:
            return True
        best = min(fitting.step_seconds for fitting in self.fitting)
        return evaluation.step_seconds <= min(_REACH * best, _MOST_GAIN * self.known_seconds)

    def _least_key(self, step_seconds: float) -> Key:
        """The least objective of a placement whose step takes so long: it fits, and nothing is known of its peak."""
        return () if self.objective is Objective.MEMORY else (0, step_seconds)

    def _local_search(
        self,
        start: Assignment,
        objective_key: Callable[[Evaluation], Key | None],
        *,
        share: float,
        neighbours: Callable[[Assignment], Iterable[Assignment]] | None = None,
        least_key: Callable[[float], Key] = lambda _: (),
    ) -> Assignment:
        """Improve a placement while this share of the allowance lasts; the evaluator keeps all evaluations.

        The memory of a placement is not looked at where its step, by `least_key`, shows that it is no improvement.
        """
        num_ops = min(MAX_LOCAL_SEARCH_OPS, int(LOCAL_SEARCH_OPS_PER_SECOND * self.time_limit_seconds)) * share
        evaluations = self.evaluator.evaluations
        most = self.evaluator.num_timed + max(1, int(num_ops / len(self.costed.graph.ops)))

        def key_of(assignment: Assignment, to_beat: Key | None) -> Key | None:
            if not self._is_allowed(assignment):
                return (float("inf"),)
            if assignment not in evaluations:
                if self.evaluator.num_timed >= most or self.deadline.is_over:
                    return None
                least = least_key(self.evaluator.first_seconds(assignment))
                if to_beat is not None and least >= to_beat:
                    return least
            return objective_key(self.evaluator(assignment))

        return local_search(start, neighbours=neighbours or self._single_changes, objective_key=key_of)

    def _single_changes(self, assignment: Assignment) -> Iterator[Assignment]:
        return single_changes(assignment, self._adjacent, len(self._room))

    @cached_property
    def _adjacent(self) -> list[set[int]]:
        return adjacent_items(self.costed, self.coarsening)

    def _in_order(self, evaluation: Evaluation) -> Evaluation:
        """The placement with devices renamed in the order in which layers use them, where that changes no figure."""
        item_of = self.coarsening.item_of
        forward = [op for op in self.costed.graph.ops if op.phase is Phase.FORWARD and op.layer]
        layers = [evaluation.assignment[item_of[op.name]] for op in forward]
        reached = dict.fromkeys([*layers, *evaluation.assignment, *range(len(self._room))])
        name = {device: index for index, device in enumerate(reached)}
        renamed = self.evaluator([name[device] for device in evaluation.assignment])
        same = self._is_allowed(renamed.assignment) and self.objective_key(renamed) == self.objective_key(evaluation)
        return renamed if same else evaluation
