"""Steps of layers in a row, and the pipelines of every cut of a step: what bounds of cuts are tested with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from graphs import Builder
from hypothesis import strategies as st

from partitioner.ir.op_graph import Phase
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import NOTHING, PipelineCandidate, Recomputed
from partitioner.stages.schedules import ScheduleKind


@st.composite
def chains(draw: st.DrawFn) -> Builder:
    """A training step of layers in a row, with backwards of any length, that may train the last layers only."""
    taken = st.sampled_from([0.25, 0.5, 1.0, 4.0])
    count, made = draw(st.integers(2, 6)), Builder()
    first_trained = draw(st.sampled_from([0, 0, 1, count - 1]))
    before = made.add("x", 0.0, type="Placeholder", size_bytes=256)
    for i in range(count):
        made.variable(f"w{i}", 256, layer=f"layer{i}")
        before = made.add(f"f{i}", draw(taken), before, size_bytes=draw(st.sampled_from([4, 1024])), layer=f"layer{i}")
    for i in reversed(range(first_trained, count)):
        back = {"phase": Phase.BACKWARD, "layer": f"layer{i}", "differentiates": f"f{i}"}
        errors = [f"b{i + 1}"] if i + 1 < count else []
        made.add(f"d{i}", draw(taken), *errors, f"f{i}", size_bytes=256, **back)
        if i > first_trained:
            made.add(f"b{i}", draw(taken), *errors, f"f{i}", size_bytes=draw(st.sampled_from([4, 1024])), **back)
        made.add(
            f"u{i}", draw(taken), f"d{i}", size_bytes=0, layer=f"layer{i}", phase=Phase.UPDATE, variables=[f"w{i}"]
        )
    return made


def all_cuts(
    evaluator: PipelineEvaluator,
    devices: Sequence[int],
    num_microbatches: int,
    kind: ScheduleKind,
    recompute: Recomputed = NOTHING,
) -> Iterator[PipelineCandidate]:
    """The simulated pipelines of every cut whose stages wait for those next to them, both ways."""
    order = evaluator.order
    for ends in combinations(range(1, len(order)), len(devices) - 1):
        assignment = [0] * len(order)
        for device, (start, end) in zip(devices, pairwise([0, *ends, len(order)]), strict=True):
            for item in order[start:end]:
                assignment[item] = device
        candidate = evaluator(assignment, num_microbatches, kind, recompute)
        if candidate is None or len(candidate.programs.stages) < len(devices):
            continue
        forward, backward = candidate.programs.forward, candidate.programs.backward
        ahead = all(set(before.outputs).intersection(stage.inputs) for before, stage in pairwise(forward))
        back = (not s.ops or set(behind.outputs).intersection(s.inputs) for s, behind in pairwise(backward))
        if ahead and all(back):
            yield candidate
