"""What two devices add to the chain at their boundary: no cut is simulated faster than it is bounded with that."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from graphs import Builder, link, topology
from hypothesis import given, settings
from hypothesis import strategies as st
from skips import steps_with_skips

from cost_models.hardware import Link
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.chain_seconds import ChainSeconds
from partitioner.planner.pipeline.chain_stretches import Stretches
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.least_chain import LeastChain
from partitioner.planner.pipeline.part_bounds import seconds_of_all_parts
from partitioner.planner.pipeline.step_ops import StepOps
from partitioner.planner.placement.evaluator import PlacementEvaluator


def bounds_and_steps(made: Builder, num_devices: int, wire: Link) -> dict[tuple[int, ...], tuple[float, float]]:
    """For each cut of the items into so many parts, by their ends: its bound and its simulated step."""
    costed = made.costed(topology(num_devices, wire=wire))
    items = coarsen(costed)
    order = forward_order(costed, items)
    ops, evaluator, found = StepOps.of(costed, items, order), PlacementEvaluator(costed, items), {}
    chain = ChainSeconds(stretches=Stretches(ops=ops, chain=Chain.of(ops)))
    every = LeastChain(seconds=chain.of_all_parts(), beside=chain.of_boundaries(), least=seconds_of_all_parts(ops))
    for inner in combinations(range(1, len(order)), num_devices - 1):
        parts, assignment = [*pairwise([0, *inner, len(order)])], [0] * len(order)
        least = np.full_like(every.least, np.inf)
        for device, (start, end) in enumerate(parts):
            least[start, end] = every.least[start, end]
            for item in order[start:end]:
                assignment[item] = device
        bound, _ = replace(every, least=least).bound(num_devices, 1e9, rounds=2)
        found[inner] = bound, evaluator(assignment).step_seconds
    return found


@settings(max_examples=60)
@given(
    steps_with_skips(),
    st.integers(2, 4),
    st.sampled_from([link(0.25, 256.0), link(0.0, 512.0), link(2.0, 2.0**20)]),
)
def test_no_cut_is_simulated_faster(made: Builder, num_devices: int, wire: Link) -> None:
    for bound, step in bounds_and_steps(made, num_devices, wire).values():
        assert bound <= step * (1 + 1e-6)


def chain_with_skip(table: float = 0.0) -> Builder:
    """f0 to f5, of which f3 reads f1, too; forward only."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=4, layer="layer0")
    made.add("table", table, size_bytes=4, layer="layer0")
    made.add("f0", 1.0, "x", "table", size_bytes=4, layer="layer0")
    made.add("f1", 1.0, "f0", size_bytes=1024, layer="layer1")
    made.add("f2", 0.5, "f1", size_bytes=1024, layer="layer2")
    made.add("f3", 1.0, "f2", "f1", size_bytes=4, layer="layer3")
    made.add("f4", 1.0, "f3", size_bytes=4, layer="layer4")
    made.add("f5", 1.0, "f4", size_bytes=4, layer="layer5")
    return made


@pytest.mark.parametrize(("num_devices", "ends"), [(2, (3,)), (3, (3, 4)), (3, (1, 3))])
def test_two_of_more_devices_know_that_tensors_wait_their_turn(num_devices: int, ends: tuple[int, ...]) -> None:
    """f1, 1024 bytes in 1 s, is sent from 2 s to 3 s; so f2, made at 2.5 s, arrives at 4 s, and 3 s follow. Tensors of
    4 bytes take 4 ms."""
    bound, step = bounds_and_steps(chain_with_skip(), num_devices, link(0.0, 1024.0))[ends]
    assert bound == pytest.approx(step, abs=0.01) == pytest.approx(7.0, abs=0.01)


def test_what_lies_on_a_third_device_does_not_wait_for_the_same_link() -> None:
    """f2 has a device of its own: f1 goes to it and to that of f3 at once. 3 s + 0.5 s + 1 s + 3 s."""
    bound, step = bounds_and_steps(chain_with_skip(), 3, link(0.0, 1024.0))[2, 3]
    assert bound <= step
    assert step == pytest.approx(7.5, abs=0.01)


def test_the_first_device_reads_a_table_before_it_goes_on() -> None:
    """The others have time to. 3 s more than without."""
    for table, expected in ((0.0, 7.0), (3.0, 10.0)):
        bound, step = bounds_and_steps(chain_with_skip(table), 2, link(0.0, 1024.0))[3,]
        assert bound == pytest.approx(step, abs=0.01) == pytest.approx(expected, abs=0.01)
