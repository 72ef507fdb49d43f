"""Move items at the boundaries of stages, while that improves a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from partitioner.deadline import BOUNDARY_SEARCH_OPS, Deadline
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import PipelineCandidate, Recomputed
from partitioner.stages.schedules import ScheduleKind

_MAX_IMPROVED = 3

Attempt = Callable[[Assignment, int, ScheduleKind, Recomputed], PipelineCandidate | None]
"""Simulates a placement in so many microbatches, with a schedule and stages that recompute."""


@dataclass(frozen=True, kw_only=True)
class BoundarySearch:
    """Local search from the best pipelines.

    Attributes:
        evaluator: Has the pipelines, and their items.
        is_allowed: Whether a placement keeps to the strategy and the constraints.
        objective_key: What is minimised.
        attempt: Simulates a neighbour.
        deadline: When to end.
    """

    evaluator: PipelineEvaluator
    is_allowed: Callable[[Assignment], bool]
    objective_key: Callable[[PipelineCandidate], tuple[float, ...]]
    attempt: Attempt
    deadline: Deadline

    def run(self) -> None:
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
                candidate = self.attempt(assignment, best.num_microbatches, best.schedule, best.recompute)
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
