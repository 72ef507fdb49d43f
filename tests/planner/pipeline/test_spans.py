"""Spans of items, and bounds and estimates of cuts from spans that are not longer than is likely."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuts import chains
from graphs import Builder, microbatching, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.cut_bounds import CutBounds
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.spans import Spans
from partitioner.planner.pipeline.split import StageSplit
from partitioner.planner.pipeline.stage_sequence import StageSequence
from partitioner.stages.schedules import ScheduleKind

KINDS = st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZB_H1, ScheduleKind.SEQUENTIAL])


def sequence_of(made: Builder, num_stages: int, count: int, kind: ScheduleKind, memory_bytes: int) -> StageSequence:
    costed = made.costed(topology(num_stages, memory_bytes=memory_bytes))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, count))
    return evaluator._sequence(tuple(range(num_stages)), count, kind, "auto")


@given(chains(), st.integers(0, 6))
def test_spans_have_what_their_items_have(made: Builder, length: int) -> None:
    items = sequence_of(made, 2, 2, ScheduleKind.GPIPE, 2**30).items
    count = len(items.order)
    spans = Spans.up_to(items, length, range(count + 1))
    assert spans.ends.shape == (count + 1, length + 1)
    work, passing = np.diff(items.forward_seconds[0]), items.passing_bytes
    for start in range(count + 1):
        for behind in range(length + 1):
            end = min(start + behind, count)
            one = Spans.one(items, start, end)
            expected = {"seconds": work[start:end].sum(), "bytes": passing[start:end].max(initial=0.0)}
            assert spans.ends[start, behind] == end
            assert spans.is_empty[start, behind] == one.is_empty.item() == (start == end)
            for made_of, at in ((spans, (start, behind)), (one, (0, 0))):
                found = made_of.between("forward_seconds", 0)[at], made_of.most_passing_bytes[at]
                assert found == pytest.approx(tuple(expected.values()), abs=1e-9)


@settings(max_examples=60)
@given(
    chains(), st.integers(2, 3), st.sampled_from([2, 4, 8]), KINDS, st.sampled_from([2**11, 2**13, 2**30]),
    st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.1, 2.0]),
)  # fmt: skip
def test_what_is_likely_changes_neither_bound_nor_cut(
    made: Builder, num_stages: int, count: int, kind: ScheduleKind, memory_bytes: int, share: float
) -> None:
    sequence = sequence_of(made, num_stages, count, kind, memory_bytes)
    if len(sequence.items.order) < num_stages:
        return
    likely = share * count * float(sequence.items.least_pass_seconds[-1])
    bounds, split = CutBounds(sequence=sequence), StageSplit(sequence=sequence)
    bound = bounds.seconds(math.inf)
    assert bounds.seconds(likely) == bound
    # What is enough is all that is asked for.
    assert bounds.seconds(likely, 0.7 * bound) >= min(bound, 0.7 * bound)
    assert bounds.seconds(likely, 0.7 * bound) <= bound
    every, found = split.best(math.inf), split.best(likely)
    assert every is not None
    assert found is not None
    assert (found.seconds, found.recompute) == (every.seconds, every.recompute)
