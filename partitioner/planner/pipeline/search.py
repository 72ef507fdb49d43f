"""Search pipelines: how many stages and microbatches, which schedule, which stages recompute.

A shape is a sequence of devices, a number of microbatches and a schedule. For each, a dynamic program bounds all cuts
of the items in forward order, and where that leaves hope, another cuts them. Shapes are simulated in the order of their
estimates, while their bounds are below the best simulated step. Where a limit is passed all the same, stages recompute.
Last, items at the boundaries of the best are moved while that improves the simulated step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import contains

from partitioner.deadline import BOUNDARY_SEARCH_OPS, Deadline
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.tolerances import AS_FAST
from partitioner.planner.pipeline.evaluator import PipelineEvaluator, Shape
from partitioner.planner.pipeline.search_space import MANY, PREFERENCE, PipelineCandidate
from partitioner.planner.pipeline.split import Cut
from partitioner.stages.schedules import ScheduleKind

# Placements of other searches that are tried with every number of microbatches.
_MAX_GIVEN = 3
_MAX_IMPROVED = 3
_ALIKE_WITHOUT_BACKWARDS = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZB_H1)
# Simulations of cuts may end before their estimates, as transfers may hide behind other work, or after them.
_MARGIN = 1.1
# A process that looks at bounds closer takes longer to start than the search of fewer ops.
_LEAST_OPS = 1_000
_SHARE_OF_CLOSER, _SECONDS_CLOSER = 0.25, 3.0


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Devices of stages, a number of microbatches and a schedule; with the bound of all its pipelines."""

    devices: tuple[int, ...]
    num_microbatches: int
    schedule: ScheduleKind
    bound_seconds: float


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
        """Simulate the cuts of all promising shapes; where these do not fit, with stages that recompute."""
        self._look_closer()
        for shape, cut in self._by_estimate():
            # The best estimate is simulated even when time is over: without it the search would have been for nothing.
            # Nobody waits for a soft deadline: there, a second opinion has its time, too.
            found = self.eligible()[1:] if self.deadline.is_soft else self.evaluator.candidates()
            if self.deadline.is_over and found:
                break
            least = max(shape.bound_seconds, cut.seconds / _MARGIN if self.eligible() else 0.0)
            if not (self._is_needless(shape) or self._is_hopeless(least)):
                self._try(cut.assignment, shape.num_microbatches, shape.schedule, cut.recompute)
        if self.evaluator.search_space.recompute == "auto":
            self._recompute_where_needed()

    def _by_estimate(self) -> Iterator[tuple[_Shape, Cut]]:
        """The cuts of shapes, the least estimate first; none of shapes whose bound is hopeless when it is their turn.

        A shape waits by its bound until its cut is estimated, as most need not be.
        """
        waiting: list[tuple[float, int, Cut | None]] = [
            (shape.bound_seconds, index, None) for index, shape in enumerate(self.shapes)
        ]
        heapify(waiting)
        while waiting:
            _, index, cut = heappop(waiting)
            shape = self.shapes[index]
            if cut is not None:
                yield shape, cut
            elif not self._is_hopeless(shape.bound_seconds) and (cut := self._cut(shape)):
                heappush(waiting, (cut.seconds, index, cut))

    @property
    def has_fitting_cut(self) -> bool:
        """Whether a cut into the most microbatches, which need the least memory, is estimated to fit."""
        most = self.counts()[-1]
        cuts = (self.evaluator.cut(*shape) for shape in self._possible_shapes() if shape[1] == most)
        return any(cut is not None and cut.fits for cut in cuts)

    def improve(self, given: Sequence[Assignment]) -> None:
        """Simulate placements from other searches as pipelines, the best first; then search near the best pipelines."""
        split = [assignment for assignment in given if len(set(assignment)) > 1 and self.is_allowed(assignment)]
        for assignment in split[:_MAX_GIVEN]:
            if self.deadline.is_over:
                break
            programs = self.evaluator.programs(assignment)
            if programs is not None and len(programs.stages) <= 2 * len(set(assignment)):
                for count in self.counts():
                    for schedule in self._schedules(sorted(set(assignment)), count):
                        if not (self.deadline.is_over or self._is_hopeless(self.evaluator.bound_seconds(count))):
                            self._try(assignment, count, schedule)
        if self.evaluator.search_space.recompute == "auto":
            self._recompute_where_needed()
        self._move_boundaries()

    def eligible(self) -> list[PipelineCandidate]:
        """Candidates that fit and keep to constraints and strategy."""
        return [
            candidate
            for candidate in self.evaluator.candidates()
            if candidate.fits and self.is_allowed(candidate.assignment)
        ]

    def counts(self) -> list[int]:
        """Numbers of microbatches; one microbatch only where the step cannot run as one graph."""
        search_space = self.evaluator.search_space
        is_unpipelined = search_space.allows_unpipelined and self.unpipelined_seconds < float("inf")
        most = self.evaluator.costed.graph.batch_size
        return sorted({count for count in search_space.counts if (2 if is_unpipelined else 1) <= count <= most})

    def objective_key(self, candidate: PipelineCandidate) -> tuple[float, ...]:
        """The key to minimise: bytes over the limits, then the objective."""
        over = float(sum(candidate.over_bytes))
        figures = (candidate.staged.step_seconds, float(candidate.staged.largest_peak_bytes))
        return (over, *(reversed(figures) if self.objective is Objective.MEMORY else figures))

    # -- candidates ------------------------------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> list[_Shape]:
        """All shapes in which the step can run."""
        shapes = [
            _Shape(
                devices=stages,
                num_microbatches=count,
                schedule=schedule,
                bound_seconds=self.evaluator.cut_bound_seconds(stages, count, schedule),
            )
            for stages, count, schedule in self._possible_shapes()
        ]
        return [shape for shape in shapes if shape.bound_seconds < float("inf")] or shapes

    def _possible_shapes(self) -> Iterator[Shape]:
        """Devices of stages, numbers of microbatches and schedules that go together."""
        for devices in self._device_sequences():
            for count in self.counts():
                for schedule in self._schedules(devices, count):
                    stages = devices * (2 if schedule is ScheduleKind.INTERLEAVED else 1)
                    if len(stages) <= len(self.evaluator.order):
                        yield stages, count, schedule

    def _look_closer(self) -> None:
        """Raise the least bounds, up to the best estimate and somewhat over it, and look for better cuts.

        No farther than to the least bound of a schedule that cannot be looked at closer: that of all is no larger.
        """
        is_worth_it = len(self.evaluator.costed.graph.ops) >= _LEAST_OPS and self.objective is not Objective.MEMORY
        left = self.deadline.seconds_left
        seconds = _SECONDS_CLOSER if self.deadline.is_soft else min(_SECONDS_CLOSER, _SHARE_OF_CLOSER * left)
        if not (is_worth_it and seconds):
            return
        shapes = [shape for shape in self._possible_shapes() if len(shape[0]) > 1]
        bounds = {shape: self.evaluator.cut_bound_seconds(*shape) for shape in shapes}
        fixed = (bound for shape, bound in bounds.items() if shape[2] is ScheduleKind.ZB_H1)
        enough = min([self.unpipelined_seconds, *fixed])
        for shape in sorted(shapes, key=bounds.__getitem__):
            if bounds[shape] >= enough:
                break
            if (cut := self.evaluator.cut(*shape)) is not None and cut.fits:
                enough = min(enough, _MARGIN * cut.seconds)
        below = [shape for shape in shapes if bounds[shape] < enough < math.inf]
        if below:
            self.evaluator.look_closer(below, enough, seconds)

    def _cut(self, shape: _Shape) -> Cut | None:
        return self.evaluator.cut(shape.devices, shape.num_microbatches, shape.schedule)

    def _is_hopeless(self, least_seconds: float) -> bool:
        """Whether pipelines that take so long at the least are slower than the incumbent."""
        if self.objective is Objective.MEMORY:
            return False
        steps = (candidate.staged.step_seconds for candidate in self.eligible())
        return least_seconds > min([self.unpipelined_seconds, *steps]) * AS_FAST

    def _is_needless(self, shape: _Shape) -> bool:
        """Whether more microbatches on one device are tried, which save only memory, though fewer fit.

        Replicas of one device have no other use of them.
        """
        if self.objective is Objective.MEMORY or len(shape.devices) > 1:
            return False
        fewest = min((candidate.num_microbatches for candidate in self.eligible()), default=shape.num_microbatches)
        return self.evaluator.search_space.is_of_replica and fewest < shape.num_microbatches

    def _schedules(self, devices: Sequence[int], count: int) -> list[ScheduleKind]:
        """Schedules that differ: on one device all give nearly the same order, with one microbatch all but zb-h1.

        In inference there are no backwards, so gpipe, 1f1b and zb-h1 are the same.
        """
        allowed = [kind for kind in PREFERENCE if kind in self.evaluator.search_space.schedules]
        if not self.evaluator.costed.graph.training:
            alike = [kind for kind in _ALIKE_WITHOUT_BACKWARDS if kind in allowed]
            return alike[:1] or allowed[:1]
        if len(devices) == 1 or count == 1:
            differ = (ScheduleKind.SEQUENTIAL, ScheduleKind.ZB_H1)[: len(devices)]
            return [kind for kind in differ if kind in allowed] or allowed[:1]
        return [kind for kind in allowed if kind is not ScheduleKind.INTERLEAVED or count % len(devices) == 0]

    def _device_sequences(self) -> list[tuple[int, ...]]:
        """Devices in the order of stages: as given, the fastest first, the largest first, as constraints ask."""
        placed = self.evaluator.costed.topology.devices
        everything = range(len(placed))
        seconds = [sum(row[device] for row in self.evaluator.costed.seconds) for device in everything]
        allowed = self.evaluator.coarsening.allowed
        asked = dict.fromkeys(min(allowed[item]) for item in self.evaluator.order if len(allowed[item]) < len(placed))
        orders = [
            list(everything),
            sorted(everything, key=lambda device: seconds[device]),
            sorted(everything, key=lambda device: -placed[device].memory_bytes),
            [*asked, *(device for device in everything if device not in asked)],
            sorted(everything, key=lambda device: -sum(device in places for places in allowed)),
        ]
        sizes = {
            Strategy.SINGLE: [1],
            Strategy.LAYER_SPLIT: [len(placed)],
            Strategy.AUTO: [
                size
                for size in _numbers_up_to(len(placed))
                if size >= self.evaluator.search_space.least_devices and (size > 1 or self.one_device)
            ],
        }[self.strategy]
        sequences = dict.fromkeys(tuple(order[:size]) for order in orders for size in sizes if size)
        return [devices for devices in sequences if not any(places.isdisjoint(devices) for places in allowed)]

    def _try(
        self, assignment: Assignment, count: int, schedule: ScheduleKind, recompute: Collection[int] = ()
    ) -> PipelineCandidate | None:
        if self.evaluator.search_space.recompute == "all":
            programs = self.evaluator.programs(assignment)
            if programs is None:
                return None
            recompute = range(len(programs.stages))
        return self.evaluator(assignment, count, schedule, recompute)

    def is_allowed(self, assignment: Assignment) -> bool:
        """Whether a placement keeps to the strategy and the constraints."""
        num_used = len(set(assignment))
        if self.strategy is Strategy.SINGLE and num_used > 1:
            return False
        if self.strategy is Strategy.LAYER_SPLIT and num_used < len(self.evaluator.names):
            return False
        return all(map(contains, self.evaluator.coarsening.allowed, assignment))

    # -- recompute -------------------------------------------------------------------------------------------------

    def _recompute_where_needed(self) -> None:
        """Recompute stages of pipelines that exceed a limit and are faster than every candidate that fits."""
        if not self.evaluator.costed.graph.training:
            return
        over = [
            candidate
            for candidate in self.evaluator.candidates()
            if not candidate.fits and self.is_allowed(candidate.assignment)
        ]
        tried: set[tuple[object, ...]] = set()
        for candidate in sorted(over, key=lambda candidate: candidate.staged.step_seconds):
            if self.deadline.is_over:
                break
            best = min([self.unpipelined_seconds, *(other.staged.step_seconds for other in self.eligible())])
            if candidate.staged.step_seconds >= best and self.objective is not Objective.MEMORY:
                break
            devices = tuple(self.evaluator.names.index(name) for name in candidate.programs.stages)
            again = self.evaluator.cut(devices, candidate.num_microbatches, candidate.schedule, again=True)
            assignments = [candidate.assignment, *([again.assignment] if again else [])]
            for assignment in dict.fromkeys(assignments):
                key = (assignment, candidate.num_microbatches, candidate.schedule)
                if key not in tried:
                    tried.add(key)
                    self._recompute(assignment, candidate.num_microbatches, candidate.schedule)

    def _recompute(self, assignment: Assignment, count: int, schedule: ScheduleKind) -> None:
        """Recompute stages of devices that exceed their limit, the earliest stages first, until all fit."""
        candidate = self.evaluator(assignment, count, schedule)
        while candidate is not None and not candidate.fits and not self.deadline.is_over:
            stages = self._over_limit(candidate)
            everything = (
                self.evaluator(assignment, count, schedule, {*candidate.recompute, *stages}) if stages else None
            )
            if everything is None or sum(everything.over_bytes) >= sum(candidate.over_bytes):
                return
            recomputed_before = candidate.recompute
            candidate = everything
            if everything.fits:
                self._fewest(assignment, count, schedule, recomputed_before, stages)

    def _fewest(
        self, assignment: Assignment, count: int, schedule: ScheduleKind, before: frozenset[int], stages: Sequence[int]
    ) -> None:
        """Recompute fewer of the stages, by bisection: the more stages recompute, the less memory is held."""
        least, most = 0, len(stages)
        while most - least > 1 and not self.deadline.is_over:
            middle = (least + most) // 2
            candidate = self.evaluator(assignment, count, schedule, {*before, *stages[:middle]})
            if candidate is not None and candidate.fits:
                most = middle
            else:
                least = middle

    def _over_limit(self, candidate: PipelineCandidate) -> list[int]:
        names = [name for name, over in zip(self.evaluator.names, candidate.over_bytes, strict=True) if over]
        return [
            stage
            for stage, name in enumerate(candidate.programs.stages)
            if name in names and stage not in candidate.recompute
        ]

    # -- improvement -----------------------------------------------------------------------------------------------

    def _move_boundaries(self) -> None:
        """Move items at the boundaries of the best pipelines while that improves them."""
        starts = sorted(
            filter(lambda candidate: self.is_allowed(candidate.assignment), self.evaluator.candidates()),
            key=self.objective_key,
        )
        most = self.evaluator.num_cut_ops + BOUNDARY_SEARCH_OPS
        seen: set[Assignment] = set()
        for start in starts:
            if start.assignment in seen or len(seen) >= _MAX_IMPROVED:
                continue
            seen.add(start.assignment)
            self._local_search(start, most)

    def _local_search(self, best: PipelineCandidate, most: int) -> None:
        improved = True
        while improved:
            improved = False
            for assignment in self._neighbours(best.assignment):
                if self.evaluator.num_cut_ops >= most or self.deadline.is_over:
                    return
                candidate = self._try(assignment, best.num_microbatches, best.schedule, best.recompute)
                if candidate is not None and self.objective_key(candidate) < self.objective_key(best):
                    best, improved = candidate, True
                    break

    def _neighbours(self, assignment: Assignment) -> Iterator[Assignment]:
        """Assignments with one item moved: to the stage before or after, then to the device of an adjacent item."""
        moves: dict[tuple[int, int], None] = {}
        for before, behind in pairwise(self.evaluator.order):
            moves[behind, assignment[before]] = None
            moves[before, assignment[behind]] = None
        for item, others in enumerate(self.evaluator.adjacent):
            moves |= {(item, assignment[other]): None for other in sorted(others)}
        for item, device in moves:
            moved = (*assignment[:item], device, *assignment[item + 1 :])
            if assignment[item] != device and self.is_allowed(moved):
                yield moved


def _numbers_up_to(count: int) -> list[int]:
    """Numbers of devices to try: all; of many devices, powers of two and some that are nearly all."""
    if count <= MANY:
        return [*range(1, count + 1)]
    return sorted({*(2**n for n in range(count.bit_length())), *(count * eighths // 8 for eighths in range(5, 9))})
