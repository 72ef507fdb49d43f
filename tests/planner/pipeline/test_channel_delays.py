"""The chain of a step over the channel between two devices, first come first served."""

from __future__ import annotations

import pytest
from graphs import Builder, link, topology
from hypothesis import given, settings
from hypothesis import strategies as st
from skips import steps_with_skips

from cost_models.hardware import Link
from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.chain_seconds import ChainSeconds
from partitioner.planner.pipeline.chain_stretches import Stretches
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.step_ops import StepOps
from partitioner.planner.placement.evaluator import PlacementEvaluator


def bounds_and_steps(made: Builder, wire: Link) -> list[tuple[float, float]]:
    """For each cut of the items in two: the chain and what is left of either device, and the simulated step."""
    costed = made.costed(topology(2, wire=wire))
    items = coarsen(costed)
    order = forward_order(costed, items)
    ops, count = StepOps.of(costed, items, order), len(order)
    of_chain = ChainSeconds(stretches=Stretches(ops=ops, chain=Chain.of(ops)))
    parts, beside = of_chain.of_all_parts(), of_chain.of_boundaries()
    found = []
    for end in range(1, count):
        first, second = (0, end), (end, count)
        there = parts.there[first] + parts.there[second] + beside.there[end]
        back = parts.back[second] + beside.back[end]
        behind = max(back + beside.late[end] + parts.back[first], back + beside.rest[first], parts.rest[second])
        assignment = [0] * count
        for item in order[end:]:
            assignment[item] = 1
        found.append((there + behind, PlacementEvaluator(costed, items)(assignment).step_seconds))
    return found


def test_a_skip_connection_is_sent_before_the_layer_that_the_next_one_waits_for() -> None:
    """f0, 1 s, is read by f1 and f3, f1, 0.5 s, by f2. If f2 is behind the cut, f0's 1024 bytes are sent from 1 s to
    2.25 s, f1's until 3.5 s; then f2 and f3 take 1 s each. The longest path alone is 1.5 + 1.25 + 2 s."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", layer="layer0")
    made.add("f0", 1.0, "x", size_bytes=1024, layer="layer0")
    made.add("f1", 0.5, "f0", size_bytes=1024, layer="layer1")
    made.add("f2", 1.0, "f1", layer="layer2")
    made.add("f3", 1.0, "f2", "f0", layer="layer3")
    before_f2 = bounds_and_steps(made, link(0.25, 1024.0))[1]
    assert before_f2 == pytest.approx((5.5, 5.5))


@pytest.mark.parametrize(("views", "skip", "expected"), [([0.0, 0.0], 0.0, 17.0), ([1 / 32], 1 / 32, 17 + 1 / 32)])
def test_what_is_ready_at_once_is_sent_in_any_order(views: list[float], skip: float, expected: float) -> None:
    """f2 reads f1 and f0. Its gradient b2, made 5 s after the start, is handed on to layer 1, by one op or by two in a
    row, and then to layer 0, as `s`. The first is sent in 2 s, and 8 s of b1 follow; meanwhile `s` arrives. Then there
    are 2 s to do."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=4, layer="layer0")
    made.add("f0", 1.0, "x", size_bytes=4, layer="layer0")
    made.add("f1", 1.0, "f0", size_bytes=4, layer="layer1")
    made.add("f2", 1.0, "f1", "f0", size_bytes=4, layer="layer2")
    made.add("loss", 1.0, "f2", size_bytes=4, layer="layer2")
    back = {"phase": Phase.BACKWARD, "layer": "layer2", "differentiates": "f2"}
    error = made.add("b2", 1.0, "loss", "f2", size_bytes=512, **back)
    for view, seconds in enumerate(views):
        error = made.add(f"m{view}", seconds, error, "f2", size_bytes=512, **back)
    made.add("s", skip, "b2", "f2", size_bytes=2048, **back)
    made.add("b1", 8.0, error, "f1", phase=Phase.BACKWARD, layer="layer1", differentiates="f1")
    made.add("a0", 1.0, "b1", "s", phase=Phase.BACKWARD, layer="layer0", differentiates="f0")
    made.add("d0", 1.0, "a0", "f0", phase=Phase.BACKWARD, layer="layer0", differentiates="f0")
    before_f2 = bounds_and_steps(made, link(0.0, 256.0))[-1]
    assert before_f2 == pytest.approx((expected + 4 / 256, expected + 4 / 256))


@settings(max_examples=100)
@given(steps_with_skips(), st.sampled_from([link(0.25, 256.0), link(0.0, 512.0), link(2.0, 2.0**20)]))
def test_no_cut_in_two_is_simulated_faster(made: Builder, wire: Link) -> None:
    for bound, step in bounds_and_steps(made, wire):
        assert bound <= step * (1 + 1e-9)
