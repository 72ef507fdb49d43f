"""Sums of gradients over replicas: the bound of cuts holds with them, and cuts are chosen with them in mind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuts import all_cuts, chains
from graphs import Builder, link, microbatching, pipeline, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.plan import SolverInfo
from partitioner.planner.layouts.all_reduces import sum_seconds_per_byte, with_all_reduce
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import PipelineCandidate
from partitioner.stages.schedules import ScheduleKind

GROUPS = ((0, 1), (2, 3))
MACHINES = topology(4, wire=link(0.0, 1024.0))
UNSOLVED = SolverInfo(status="feasible", objective=0.0, lower_bound=0.0, gap=1.0, seconds=0.0, seed=0)


def evaluator_of(made: Builder, count: int) -> PipelineEvaluator:
    """Pipelines of the first of two replicas of two devices each."""
    costed = made.costed(MACHINES.subset(GROUPS[0]))
    space = microbatching(
        costed, count, recompute="none", sum_seconds_per_byte=sum_seconds_per_byte(MACHINES, GROUPS), unpipelined=False
    )
    return PipelineEvaluator(costed, coarsen(costed), space)


def step_seconds(evaluator: PipelineEvaluator, candidate: PipelineCandidate) -> float:
    """The step with its sums."""
    result = SearchResult(
        placement=candidate.placement,
        schedule=candidate.staged.schedule,
        coarsening=evaluator.coarsening,
        baselines=(),
        solver=UNSOLVED,
        notes=(),
        num_microbatches=candidate.num_microbatches,
        staged=candidate.staged,
        programs=candidate.programs,
    )
    return with_all_reduce(result, evaluator.costed.graph, MACHINES, GROUPS).schedule.step_seconds


def steps_of_cuts(evaluator: PipelineEvaluator, count: int, kind: ScheduleKind) -> Iterator[float]:
    for candidate in all_cuts(evaluator, (0, 1), count, kind):
        yield step_seconds(evaluator, candidate)


@settings(max_examples=60)
@given(chains(), st.sampled_from([1, 2, 4]), st.sampled_from(["gpipe", "1f1b", "sequential"]))
def test_no_cut_sums_its_gradients_before_the_bound(made: Builder, count: int, kind: str) -> None:
    evaluator = evaluator_of(made, count)
    if len(evaluator.order) < 2:
        return
    bound = evaluator.cut_bound_seconds((0, 1), count, ScheduleKind(kind))
    assert all(step >= bound * (1 - 1e-9) for step in steps_of_cuts(evaluator, count, ScheduleKind(kind)))


@pytest.mark.parametrize("heavy", [0, 5])
def test_cuts_are_chosen_with_the_sums_in_mind(heavy: int) -> None:
    """A layer whose sum takes half of the step: at the end it is summed while stages before it still work."""
    sizes = [64 * 1024 if index == heavy else 64 for index in range(6)]
    made = pipeline(6, forward=4.0, backward=8.0, saved_bytes=4, gradient_bytes=sizes)
    evaluator = evaluator_of(made, 2)
    cut = evaluator.cut((0, 1), 2, ScheduleKind.GPIPE)
    assert cut is not None
    chosen = evaluator(cut.assignment, 2, ScheduleKind.GPIPE)
    assert chosen is not None
    steps = list(steps_of_cuts(evaluator, 2, ScheduleKind.GPIPE))
    assert step_seconds(evaluator, chosen) == pytest.approx(min(steps), rel=0.02)
    assert max(steps) > 1.05 * min(steps)
