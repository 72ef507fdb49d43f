"""The bound of a step in one piece: no cut of its items in order is simulated faster."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from graphs import Builder, link, microbatching, pipeline, random_steps, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.one_piece import one_piece_bound
from partitioner.planner.placement.evaluator import PlacementEvaluator

FREE = link(0.0, 2.0**60)


@settings(max_examples=60)
@given(
    random_steps(),
    st.integers(1, 3),
    st.sampled_from([[1.0] * 3, [1.0, 2.0, 0.5]]),
    st.sampled_from([FREE, link(0.25, 256.0), link(2.0, 2.0**20)]),
)
def test_no_cut_in_order_is_faster(made, num_devices: int, speeds: list[float], wire) -> None:
    costed = made.costed(topology(num_devices, wire=wire, speeds=speeds[:num_devices]))
    items = coarsen(costed)
    order, evaluator = forward_order(costed, items), PlacementEvaluator(costed, items)
    bound = one_piece_bound(costed, items, order).seconds
    for number in range(1, min(num_devices, len(order)) + 1):
        for ends in combinations(range(1, len(order)), number - 1):
            assignment = [0] * len(order)
            for device, (start, end) in enumerate(pairwise([0, *ends, len(order)])):
                for item in order[start:end]:
                    assignment[item] = device
            assert evaluator(assignment).step_seconds >= bound * (1 - 1e-9)


def test_a_chain_gains_by_the_gradients_of_weights_that_nobody_waits_for() -> None:
    """Forward 4 x 1 s; each backward is a gradient of weights, 2 s, and one of the input in no time. The last device
    still works on its own while the one before goes back: 4 + 2 x 2 on two devices, 4 + 2 with one layer on each. The
    cuts that are closest to the bound reach it."""
    made = pipeline(4, forward=1.0, backward=2.0)
    for count, expected in ((1, 12.0), (2, 8.0), (4, 6.0)):
        costed = made.costed(topology(count, wire=FREE))
        items = coarsen(costed)
        bound = one_piece_bound(costed, items, forward_order(costed, items))
        assert bound.seconds == pytest.approx(expected)
        steps = [PlacementEvaluator(costed, items)(one).step_seconds for one in bound.closest]
        assert min(steps, default=12.0) == pytest.approx(expected)


def test_a_chain_waits_for_what_crosses() -> None:
    """Two layers a device: 2 s forward, 64 bytes in 0.25 + 64 / 1024 s, 2 s forward, the gradient of the input, 256
    bytes, in 0.25 + 256 / 1024 s, then both gradients of weights: 8.8125 s. One layer and three take 10.3 s and more.
    """
    costed = pipeline(4, forward=1.0, backward=2.0, saved_bytes=64).costed(topology(2, wire=link(0.25, 1024.0)))
    items = coarsen(costed)
    bound = one_piece_bound(costed, items, forward_order(costed, items))
    assert bound.seconds == pytest.approx(8.8125)
    steps = [PlacementEvaluator(costed, items)(one).step_seconds for one in bound.closest]
    assert min(steps) == pytest.approx(8.8125)
    in_haste = one_piece_bound(costed, items, forward_order(costed, items), is_raised=False)
    assert in_haste.seconds == pytest.approx(8.3125)  # with the first of both transfers
    assert in_haste.closest


def test_a_step_that_is_known_to_be_faster_needs_no_cuts() -> None:
    costed = pipeline(4, forward=1.0, backward=2.0, saved_bytes=64).costed(topology(2, wire=link(0.25, 1024.0)))
    items = coarsen(costed)
    bound = one_piece_bound(costed, items, forward_order(costed, items), known_seconds=7.0)
    assert 7.0 <= bound.seconds <= 8.8125
    assert not bound.closest


def test_a_cut_divides_the_branches_of_one_fork_only() -> None:
    """1 s, two branches of 3 s, 1 s, two of 3 s, 1 s: paths of 9 s. Two devices share the branches of one fork, 12 s;
    three share those of both, but the second device then has two of them, which take no longer."""
    made = Builder()
    made.add("x", 1.0, type="Placeholder", layer="x")
    for fork, start, end in (("first", "x", "y"), ("second", "y", "z")):
        branches = [made.add(f"{fork}{branch}", 3.0, start, layer=f"{fork}{branch}") for branch in range(2)]
        made.add(end, 1.0, *branches, layer=end)
    for num_devices, expected in ((2, 12.0), (3, 9.0)):
        costed = made.costed(topology(num_devices, wire=FREE))
        items = coarsen(costed)
        bound = one_piece_bound(costed, items, forward_order(costed, items))
        steps = [PlacementEvaluator(costed, items)(one).step_seconds for one in bound.closest]
        assert bound.seconds == pytest.approx(expected) == pytest.approx(min(steps))


@settings(max_examples=30)
@given(random_steps(), st.sampled_from([FREE, link(0.25, 256.0), link(2.0, 2.0**20)]))
def test_of_two_devices_the_bound_is_the_step_of_the_best_cut(made, wire) -> None:
    """Within 0.2 %, once the cuts are simulated that may be faster; as many as it takes of so few."""
    costed = made.costed(topology(2, wire=wire))
    items = coarsen(costed)
    order, evaluator = forward_order(costed, items), PlacementEvaluator(costed, items)

    def step_of(cut: tuple[int, ...]) -> float:
        return evaluator(cut).step_seconds

    bound = one_piece_bound(costed, items, order, step_of=step_of).seconds
    cuts = [tuple(int(order.index(item) >= end) for item in range(len(order))) for end in range(1, len(order) + 1)]
    best = min(map(step_of, cuts))
    in_haste = one_piece_bound(costed, items, order, step_of=lambda _: None).seconds
    assert in_haste == one_piece_bound(costed, items, order).seconds
    assert best * 0.998 * (1 - 1e-9) <= bound <= best * (1 + 1e-9)


def test_a_cut_is_sought_for_each_table_of_what_devices_hold() -> None:
    """Of four layers two each are the best cut; if no device has room for the first two, one and three."""
    costed = pipeline(4, forward=1.0, backward=2.0).costed(topology(2, wire=FREE))
    items = coarsen(costed)
    order = forward_order(costed, items)
    everything = np.ones((len(order) + 1, len(order) + 1), dtype=bool)
    without_two = everything.copy()
    without_two[0, 2:] = False
    bound = one_piece_bound(costed, items, order, may_hold=(everything, without_two))
    assert [[cut[item] for item in order] for cut in bound.closest] == [[0, 0, 1, 1], [0, 1, 1, 1]]


def test_a_device_may_hold_layers_until_what_they_keep_fills_it() -> None:
    """A layer has 4 KiB of weights, and keeps 1 KiB for its backward; its gradient of weights takes 2 KiB more."""
    costed = pipeline(4, saved_bytes=1024, gradient_bytes=2048).costed(topology(2, memory_bytes=3 * 5120 - 1))
    certain, estimated = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 2)).may_hold
    assert [bool(certain[0, end]) for end in range(5)] == [True, True, True, False, False]
    assert estimated[0, 1]
    assert not estimated[0, 3]
