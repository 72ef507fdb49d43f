"""Recompute activations of stages where a pipeline passes a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from partitioner.deadline import Deadline
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import PipelineCandidate, Recomputed
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class Recomputing:
    """Pipelines that exceed a limit, with as many stages that recompute as they need to fit.

    Attributes:
        evaluator: Simulates pipelines, and keeps the results.
        is_allowed: Whether a placement keeps to the strategy and the constraints.
        deadline: When to end.
    """

    evaluator: PipelineEvaluator
    is_allowed: Callable[[Assignment], bool]
    deadline: Deadline

    def run(self, limit_seconds: Callable[[], float]) -> None:
        """Recompute stages of pipelines that exceed a limit and take less than the best that fits, as it is then."""
        if not self.evaluator.costed.graph.training:
            return
        over = [
            candidate
            for candidate in self.evaluator.candidates()
            if not candidate.fits and self.is_allowed(candidate.assignment)
        ]
        tried: set[tuple[object, ...]] = set()
        for candidate in sorted(over, key=lambda candidate: candidate.staged.step_seconds):
            if self.deadline.is_over or candidate.staged.step_seconds >= limit_seconds():
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
        """Recompute stages of devices that exceed their limit, the earliest stages first, until all fit.

        First cheap ops run again, and all ops only where that is not enough.
        """
        candidate = self.evaluator(assignment, count, schedule)
        for more in (Recomputed.with_selective, Recomputed.with_full):
            while candidate is not None and not candidate.fits and not self.deadline.is_over:
                before, over = candidate.recompute, self._over_limit(candidate)
                stages = [stage for stage in over if more(before, [stage]) != before]
                everything = self.evaluator(assignment, count, schedule, more(before, stages)) if stages else None
                if everything is None or sum(everything.over_bytes) >= sum(candidate.over_bytes):
                    break
                candidate = everything
                if candidate.fits:
                    self._fewest(assignment, count, schedule, partial(more, before), stages)

    def _fewest(
        self,
        assignment: Assignment,
        count: int,
        schedule: ScheduleKind,
        recomputing: Callable[[Sequence[int]], Recomputed],
        stages: Sequence[int],
    ) -> None:
        """Recompute fewer of the stages, by bisection: the more stages recompute, the less memory is held."""
        least, most = 0, len(stages)
        while most - least > 1 and not self.deadline.is_over:
            middle = (least + most) // 2
            candidate = self.evaluator(assignment, count, schedule, recomputing(stages[:middle]))
            if candidate is not None and candidate.fits:
                most = middle
            else:
                least = middle

    def _over_limit(self, candidate: PipelineCandidate) -> list[int]:
        names = [name for name, over in zip(self.evaluator.names, candidate.over_bytes, strict=True) if over]
        return [stage for stage, name in enumerate(candidate.programs.stages) if name in names]
