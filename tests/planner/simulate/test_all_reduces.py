"""Sums of gradients over replicas: the bound of cuts holds with them, and cuts are chosen with them in mind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bounding import closer_steps
from cuts import all_cuts, chains
from graphs import Builder, link, microbatching, pipeline, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.stage_programs import Gather
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.simulate.all_reduces import ReplicaSums
from partitioner.planner.simulate.exchange_seconds import sum_times
from partitioner.stages.buckets import buckets
from partitioner.stages.schedules import ScheduleKind

GROUPS = ((0, 1), (2, 3))
MACHINES = topology(4, wire=link(0.0, 1024.0))


def evaluator_of(made: Builder, count: int) -> PipelineEvaluator:
    """Pipelines of the first of two replicas of two devices each."""
    costed = made.costed(MACHINES.subset(GROUPS[0]))
    space = microbatching(
        costed,
        count,
        recompute="none",
        sums=ReplicaSums(MACHINES, GROUPS),
        unpipelined=False,
    )
    return PipelineEvaluator(costed, coarsen(costed), space)


def steps_of_cuts(evaluator: PipelineEvaluator, count: int, kind: ScheduleKind) -> Iterator[float]:
    for candidate in all_cuts(evaluator, (0, 1), count, kind):
        yield candidate.staged.step_seconds


@settings(max_examples=60)
@given(chains(), st.sampled_from([1, 2, 4]), st.sampled_from(["gpipe", "1f1b", "sequential", "zb-h1", "zb-h2"]))
def test_no_cut_sums_its_gradients_before_the_bound(made: Builder, count: int, kind: str) -> None:
    evaluator = evaluator_of(made, count)
    if len(evaluator.order) < 2:
        return
    shape = (0, 1), count, ScheduleKind(kind)
    evaluator.look_closer([shape], 1e9, 2.0, ask=closer_steps)
    bound = evaluator.cut_bound_seconds(*shape)
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
    assert chosen.staged.step_seconds == pytest.approx(min(steps), rel=0.02)
    assert max(steps) > 1.05 * min(steps)


def test_a_later_stage_sums_while_the_first_one_works() -> None:
    """A bound added up its sums and those of the first stage: both devices sum at the same time, 512 B at 1024 B/s."""
    made = pipeline(2, forward=0.25, backward=0.25, saved_bytes=4, gradient_bytes=[512, 512])
    evaluator = evaluator_of(made, 2)
    (step,) = steps_of_cuts(evaluator, 2, ScheduleKind.GPIPE)
    assert 0.8 * step <= evaluator.cut_bound_seconds((0, 1), 2, ScheduleKind.GPIPE) <= step


def test_what_a_gradient_adds_is_no_more_than_its_share_of_the_exchange() -> None:
    """Of 100 gradients of all sizes and some rows, in messages of at most 32 MiB, with latencies."""
    machines = topology(4, wire=link(1e-3, 1e9))
    sums = ReplicaSums(machines, ((0,), (1,), (2,), (3,)))
    sizes = [2 ** (10 + index % 17) for index in range(100)]
    messages = buckets((index, "float32", size) for index, size in enumerate(sizes))
    whole = sum_times(
        sum(sizes), 2.0**20, num_tensors=100, topology=machines, peers=(0, 1, 2, 3), num_messages=len(messages)
    )
    least = sum(float(sums.least_seconds(size, Gather.SUM)[0]) for size in sizes)
    least += float(sums.least_seconds(2.0**20, Gather.CONCAT)[0])
    assert 0.8 * whole.seconds <= least <= whole.seconds
    two_tensors = sum_times(0, 2.0**20, num_tensors=2, topology=machines, peers=(0, 1, 2, 3), num_gathered=2)
    rows = [2.0**18, 2.0**20 - 2.0**18]
    assert sum(float(sums.least_seconds(size, Gather.CONCAT)[0]) for size in rows) == pytest.approx(two_tensors.seconds)
