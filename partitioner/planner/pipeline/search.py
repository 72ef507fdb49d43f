"""Search pipelines: how many stages and microbatches, which schedule, which stages recompute.

A shape is a sequence of devices, a number of microbatches and a schedule. For each, a dynamic program bounds all cuts
of the items in forward order, and where that leaves hope, another cuts them. Shapes are simulated in the order of their
estimates, while their bounds are below the best simulated step. Where a limit is passed all the same, stages recompute.
Last, items at the boundaries of the best are moved while that improves the simulated step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from operator import contains, sub

from partitioner.deadline import Deadline
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.tolerances import AS_ESTIMATED, AS_FAST, ROUNDING
from partitioner.planner.pipeline.boundaries import BoundarySearch
from partitioner.planner.pipeline.evaluator import PipelineEvaluator, Shape
from partitioner.planner.pipeline.recomputing import Recomputing
from partitioner.planner.pipeline.search_space import NOTHING, PipelineCandidate, Recomputed
from partitioner.planner.pipeline.shapes import Shapes
from partitioner.planner.pipeline.split import Cut
from partitioner.stages.schedules import ScheduleKind

# Placements of other searches that are tried with every number of microbatches.
_MAX_GIVEN = 3
# Cuts of which the best is simulated, where none can be as fast as what is known.
_FEW = 4
# Of a limit, what estimated peaks are too high by, at the most (16 %, of small stages that recompute).
_SHARE_WRONG = 0.2
# Of a limit, what another cut leaves free besides what the one before lacked.
_SHARE_SPARE = 0.02
# A process that looks at bounds closer takes longer to start than the search of fewer ops.
_LEAST_OPS = 1_000
_SHARE_OF_CLOSER, _SECONDS_CLOSER = 0.25, 4.0


@dataclass(frozen=True, kw_only=True)
class PipelineSearch:
    """A search of pipelines.

    Attributes:
        evaluator: Simulates pipelines, and keeps the results.
        strategy: `single`, `layer-split` (every device gets a stage) or `auto`.
        objective: Whether the step time or the largest peak is minimised.
        unpipelined_seconds: Step of the best placement that runs as one graph and fits; infinite if there is none.
        one_device: Whether microbatches on one device alone are tried.
        deadline: When to end with the pipelines simulated so far.
    """

    evaluator: PipelineEvaluator
    strategy: Strategy
    objective: Objective
    unpipelined_seconds: float
    one_device: bool
    deadline: Deadline

    def run(self) -> None:
        """Simulate the cuts of all promising shapes; where these do not fit, with stages that recompute.

        Where not even those that need least memory are estimated to fit, a few of these, as estimates are not exact, or
        one, where they lack too much for that.
        """
        if self.may_fit:
            self._run_promising()
        if not (self.eligible() or self.has_fitting_cut):
            most = max(placed.memory_bytes for placed in self.evaluator.costed.topology.devices)
            for shape, cut in self._smallest[: _FEW if self.lacking_bytes <= _SHARE_WRONG * most else 1]:
                self._try_cut(shape, cut)
        if self.evaluator.search_space.recompute == "auto":
            self._recompute()

    def _run_promising(self) -> None:
        self._look_closer()
        for shape, cut in self._by_estimate():
            if self.deadline.is_over and self._is_enough(cut):
                break
            least = max(self.bound_seconds(shape), cut.seconds / AS_ESTIMATED if self.eligible() else 0.0)
            if not (self._is_needless(shape) or self._is_hopeless(least)):
                self._try_cut(shape, cut)

    def _is_enough(self, next_cut: Cut) -> bool:
        """Whether what is known will do once time is over, with no simulation of the next cut.

        The best estimate is simulated in any case, and a few more that may fit while none does: without them the search
        would have been for nothing. Nobody waits for a soft deadline: there, another shape has its time, too, as a
        second opinion, whether or not it fits, unless the first is as fast as that is estimated, or behind another
        layout.
        """
        if not self.deadline.is_soft:
            count = len(self.evaluator.candidates())
            return bool(self.eligible()) or count >= (_FEW if next_cut.fits else 1)
        eligible, known = self.eligible(), self.evaluator.search_space.known_seconds
        if eligible and _kind(eligible[0]) != _kind(self.evaluator.candidates()[-1]):
            return True
        return any(not next_cut.seconds < one.staged.step_seconds <= known for one in eligible)

    def _try_cut(self, shape: Shape, cut: Cut) -> None:
        """Simulate a cut; where its peaks are not as estimated, another one that knows how far estimates are off.

        It leaves what this one lacked, or, where this one is the best, runs less again in what it does not use.
        """
        found = self._try(cut.assignment, shape.num_microbatches, shape.schedule, cut.recompute)
        if found is None or not cut.fits:
            return
        limits = [placed.memory_bytes for placed in self.evaluator.costed.topology.devices]
        peaks = [found.staged.peak[name].total_bytes for name in self.evaluator.names]
        more = [
            int(limit * _SHARE_SPARE) + peak - estimated
            for limit, peak, estimated in zip(limits, peaks, cut.peak_bytes, strict=True)
        ]
        if not found.fits:
            spare = [max(0, one) for one in more]
        elif self._is_fastest(found) and cut.recompute.stages and min(more) < 0:
            spare = more
        else:
            return
        other = self.evaluator.cut(shape.devices, shape.num_microbatches, shape.schedule, spare_bytes=tuple(spare))
        if other is not None and other.fits and not self._is_hopeless(other.seconds / AS_ESTIMATED):
            self._try(other.assignment, shape.num_microbatches, shape.schedule, other.recompute)

    def _by_estimate(self) -> Iterator[tuple[Shape, Cut]]:
        """The cuts of shapes, the least estimate first; none of shapes whose bound is hopeless when it is their turn.

        A shape waits by what is known of its bound until its cut is estimated, as most need not be. Of shapes that
        cannot be as fast as what is known, a few are estimated, those that are fastest in equal stages; others wait for
        the cuts of these. Near the cut whose turn it is a better one is looked for. Once a time limit is over, no more
        shapes are cut, if one was that is estimated to fit.
        """
        settled: set[int] = set()
        shapes, most, known = [*self.possible], self._most_seconds, self.evaluator.known_bound_seconds
        waiting: list[tuple[float, float, int, Cut | None]] = [
            (min(known(shape), most), self.evaluator.equal_stages_seconds(shape), index, None)
            for index, shape in enumerate(shapes)
        ]
        heapify(waiting)
        num_cuts = 0
        while waiting:
            least, in_equal_stages, index, cut = heappop(waiting)
            shape = shapes[index]
            if cut is not None and (index in settled or self._is_hopeless(cut.seconds / AS_ESTIMATED)):
                yield shape, cut
            elif cut is not None:
                near = self.evaluator.near_cut(shape, cut)
                settled.add(index)
                heappush(waiting, (near.seconds, in_equal_stages, index, near))
            elif (
                self._is_left_uncut(shape)
                or self._is_hopeless(bound := self.bound_seconds(shape))
                or (bound == math.inf and num_cuts)
            ):
                continue
            elif min(bound, most) > least:
                heappush(waiting, (min(bound, most), in_equal_stages, index, None))
            elif num_cuts >= _FEW and most <= least < math.inf:
                heappush(waiting, (math.inf, in_equal_stages, index, None))
            elif cut := self._cut(shape):
                heappush(waiting, (cut.seconds, in_equal_stages, index, cut))
                num_cuts += 1

    def _is_left_uncut(self, shape: Shape) -> bool:
        """Whether there is no time for the cut of a shape, and there is for that of another, which may fit."""
        if self.deadline.is_soft or not self.deadline.is_over or self.evaluator.known_cut(shape) is not None:
            return False
        return any(cut is not None and cut.fits for cut in map(self.evaluator.known_cut, self.possible))

    @property
    def may_fit(self) -> bool:
        """Whether the shape that is fastest in equal stages is estimated to fit, or one that needs least memory."""
        fastest = min(self.possible, key=self.evaluator.equal_stages_seconds, default=None)
        cut = self._cut(fastest) if fastest else None
        return (cut is not None and cut.fits) or self.has_fitting_cut

    @property
    def has_fitting_cut(self) -> bool:
        """Whether a cut into the most microbatches, which need the least memory, is estimated to fit."""
        cuts = map(self._cut, self._in_most_microbatches)
        return any(cut is not None and cut.fits for cut in cuts)

    @property
    def _smallest(self) -> list[tuple[Shape, Cut]]:
        """The cuts into the most microbatches, those that lack least first."""
        cuts = [(shape, cut) for shape in self._in_most_microbatches if (cut := self._cut(shape))]
        return sorted(cuts, key=lambda one: one[1].seconds)

    @property
    def lacking_bytes(self) -> int:
        """What the cut into the most microbatches that lacks least is estimated to lack on a device, at the most."""
        limits = [placed.memory_bytes for placed in self.evaluator.costed.topology.devices]
        lacking = (max(map(sub, cut.peak_bytes, limits)) for _, cut in self._smallest)
        return max(0, min(lacking, default=0))

    @cached_property
    def _in_most_microbatches(self) -> list[Shape]:
        """Those for which there may be room, however many stages a device has, on most devices first; if there is none,
        those on most devices."""
        most = max(self.possible.counts, default=1)
        shapes = [shape for shape in self.possible if shape.num_microbatches == most]
        shapes.sort(key=lambda shape: -len(set(shape.devices)))
        largest = [shape for shape in shapes if len(set(shape.devices)) == len(set(shapes[0].devices))]

        def dealt(shape: Shape) -> tuple[frozenset[int], ScheduleKind]:
            return frozenset(shape.devices), shape.schedule

        roomy = {*map(dealt, filter(self.evaluator.has_room, shapes))}
        return [shape for shape in shapes if dealt(shape) in roomy] or largest

    @property
    def estimated_seconds(self) -> float:
        """The least estimate of a cut, with no need to simulate one; infinite where each takes longer than what is
        known, or none is estimated to fit."""
        if not self.may_fit:
            return math.inf
        known = self._most_seconds
        _, promising = self._promising()
        promising += [shape for shape in self.possible if len(shape.devices) == 1 and self.bound_seconds(shape) < known]
        return min((cut.seconds for cut in map(self._cut, promising) if cut is not None), default=math.inf)

    def improve(self, given: Sequence[Assignment]) -> None:
        """Simulate placements from other searches as pipelines, the best first; then search near the best pipelines."""
        split = [assignment for assignment in given if len(set(assignment)) > 1 and self.is_allowed(assignment)]
        for assignment in split[:_MAX_GIVEN]:
            if self.deadline.is_over:
                break
            programs = self.evaluator.programs(assignment)
            if programs is not None and len(programs.stages) <= 2 * len(set(assignment)):
                for count in self.possible.counts:
                    for schedule in self.possible.schedules(sorted(set(assignment)), count):
                        if not (self.deadline.is_over or self._is_hopeless(self.evaluator.bound_seconds(count))):
                            self._try(assignment, count, schedule)
        if self.evaluator.search_space.recompute == "auto":
            self._recompute()
        BoundarySearch(
            evaluator=self.evaluator,
            is_allowed=self.is_allowed,
            objective_key=self.objective_key,
            attempt=self._try,
            deadline=self.deadline,
        ).run()

    def eligible(self) -> list[PipelineCandidate]:
        """Candidates that fit and keep to constraints and strategy."""
        return [
            candidate
            for candidate in self.evaluator.candidates()
            if candidate.fits and self.is_allowed(candidate.assignment)
        ]

    def objective_key(self, candidate: PipelineCandidate) -> tuple[float, ...]:
        """The key to minimise: bytes over the limits, then the objective."""
        over = float(sum(candidate.over_bytes))
        figures = (candidate.staged.step_seconds, float(candidate.staged.largest_peak_bytes))
        return (over, *(reversed(figures) if self.objective is Objective.MEMORY else figures))

    @cached_property
    def possible(self) -> Shapes:
        """The shapes that the request allows."""
        allows_unpipelined = self.evaluator.search_space.allows_unpipelined
        return Shapes(
            evaluator=self.evaluator,
            strategy=self.strategy,
            one_device=self.one_device,
            in_one_piece=allows_unpipelined and self.unpipelined_seconds < math.inf,
        )

    def bound_seconds(self, shape: Shape) -> float:
        """Lower bound on the step of all pipelines of a shape; it need not pass a step that is known by much."""
        return self.evaluator.cut_bound_seconds(*shape, enough_seconds=self._enough_seconds)

    @property
    def least_bound_seconds(self) -> float:
        """Lower bound on the step of all pipelines; it need not pass a step that is known by much."""
        return next((bound for bound, _ in self._by_bound([*self.possible], lambda: self._enough_seconds)), math.inf)

    @cached_property
    def _most_seconds(self) -> float:
        """A step that is known; whatever takes longer is of no interest where the step is minimised."""
        known = min(self.unpipelined_seconds, self.evaluator.search_space.known_seconds)
        return math.inf if self.objective is Objective.MEMORY else known

    @property
    def _enough_seconds(self) -> float:
        """What bounds need not pass: just so much that a pipeline is not as fast as the best known."""
        if self.objective is Objective.MEMORY:
            return math.inf
        return min(self._most_seconds, self._best_seconds * AS_FAST * (1 + ROUNDING))

    def _by_bound(self, shapes: Sequence[Shape], enough: Callable[[], float]) -> Iterator[tuple[float, Shape]]:
        """Shapes and their bounds, the least first; each is raised when it is its turn, up to what is enough then."""
        waiting = [(self.evaluator.known_bound_seconds(shape), index, False) for index, shape in enumerate(shapes)]
        heapify(waiting)
        while waiting:
            bound, index, is_raised = heappop(waiting)
            shape = shapes[index]
            if is_raised:
                yield bound, shape
            else:
                bound = self.evaluator.cut_bound_seconds(*shape, enough_seconds=enough())
                heappush(waiting, (bound, index, True))

    def _look_closer(self) -> None:
        """Raise the least bounds, up to the best estimate and somewhat over it, and look for better cuts."""
        is_worth_it = len(self.evaluator.costed.graph.ops) >= _LEAST_OPS and self.objective is not Objective.MEMORY
        left = self.deadline.seconds_left
        seconds = _SECONDS_CLOSER if self.deadline.is_soft else min(_SECONDS_CLOSER, _SHARE_OF_CLOSER * left)
        if not (is_worth_it and seconds):
            return
        enough, promising = self._promising()
        below = [shape for shape in promising if self.bound_seconds(shape) < enough < math.inf]
        if below:
            self.evaluator.look_closer(below, enough, seconds)

    def _promising(self) -> tuple[float, list[Shape]]:
        """The step of the best estimate and somewhat more, and the shapes whose bounds are below, the least first."""
        shapes = [shape for shape in self.possible if len(shape.devices) > 1]
        enough, promising = self._most_seconds, list[Shape]()

        def estimate(shape: Shape) -> None:
            nonlocal enough
            if (cut := self._cut(shape)) is not None and cut.fits:
                enough = min(enough, AS_ESTIMATED * cut.seconds)

        if shapes:
            estimate(min(shapes, key=self.evaluator.equal_stages_seconds))
        for bound, shape in self._by_bound(shapes, lambda: enough):
            if bound >= enough:
                break
            promising.append(shape)
            estimate(shape)
        return enough, promising

    def _cut(self, shape: Shape) -> Cut | None:
        return self.evaluator.cut(*shape)

    def _is_hopeless(self, least_seconds: float) -> bool:
        """Whether pipelines that take so long at the least are slower than the best known."""
        if self.objective is Objective.MEMORY:
            return False
        return least_seconds > self._best_seconds * AS_FAST

    def _is_fastest(self, candidate: PipelineCandidate) -> bool:
        """Whether nothing known is faster, where the step is minimised."""
        return self.objective is not Objective.MEMORY and candidate.staged.step_seconds <= self._best_seconds

    def _is_needless(self, shape: Shape) -> bool:
        """Whether more microbatches on one device are tried, which save only memory, though fewer fit.

        Replicas of one device have no other use of them.
        """
        if self.objective is Objective.MEMORY or len(shape.devices) > 1:
            return False
        fewest = min((candidate.num_microbatches for candidate in self.eligible()), default=shape.num_microbatches)
        return self.evaluator.search_space.is_of_replica and fewest < shape.num_microbatches

    def _try(
        self, assignment: Assignment, count: int, schedule: ScheduleKind, recompute: Recomputed = NOTHING
    ) -> PipelineCandidate | None:
        if self.evaluator.search_space.recompute == "all":
            programs = self.evaluator.programs(assignment)
            if programs is None:
                return None
            recompute = Recomputed(full=frozenset(range(len(programs.stages))))
        return self.evaluator(assignment, count, schedule, recompute)

    def is_allowed(self, assignment: Assignment) -> bool:
        """Whether a placement keeps to the strategy and the constraints."""
        num_used = len(set(assignment))
        if self.strategy is Strategy.SINGLE and num_used > 1:
            return False
        if self.strategy is Strategy.LAYER_SPLIT and num_used < len(self.evaluator.names):
            return False
        return all(map(contains, self.evaluator.coarsening.allowed, assignment))

    def _recompute(self) -> None:
        recomputing = Recomputing(evaluator=self.evaluator, is_allowed=self.is_allowed, deadline=self.deadline)
        recomputing.run(lambda: math.inf if self.objective is Objective.MEMORY else self._best_seconds)

    @property
    def _best_seconds(self) -> float:
        """The least step of what fits, as one graph and in stages; of other layouts too, once this one has a step."""
        steps = [candidate.staged.step_seconds for candidate in self.eligible()]
        others = [self.evaluator.search_space.known_seconds] if steps else []
        return min([self.unpipelined_seconds, *steps, *others])


def _kind(candidate: PipelineCandidate) -> tuple[int, int, ScheduleKind]:
    """What pipelines of one shape have in common."""
    return len(candidate.programs.stages), candidate.num_microbatches, candidate.schedule
