"""What a device certainly holds of a part of the items, beside what it is simulated to hold at its peak."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from graphs import Builder, link, pipeline, random_steps, topology
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from skips import steps_with_skips

from partitioner.ir.op_graph import Phase
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.least_held import least_held_bytes
from partitioner.planner.pipeline.one_piece import one_piece_bound
from partitioner.planner.pipeline.step_ops import StepOps
from partitioner.planner.placement.evaluator import PlacementEvaluator


@settings(max_examples=60)
@given(st.one_of(random_steps(), steps_with_skips()), st.integers(1, 3), st.booleans())
def test_no_device_holds_less_at_its_peak(made: Builder, num_devices: int, delays: bool) -> None:
    costed = made.costed(topology(num_devices))
    assume(any(costed.fastest_seconds))
    items = coarsen(costed)
    order, evaluator = forward_order(costed, items), PlacementEvaluator(costed, items)
    ops = StepOps.of(costed, items, order)
    chain = Chain.of(ops)
    held = least_held_bytes(costed, items, order, ops.names[int(chain.milestones[chain.turn])])
    for inner in combinations(range(1, len(order)), num_devices - 1):
        assignment, parts = [0] * len(order), [*pairwise([0, *inner, len(order)])]
        for device, (start, end) in enumerate(parts):
            for item in order[start:end]:
                assignment[item] = device
        peak = evaluator.schedule(assignment, delays).peak
        for placed, part in zip(costed.topology.devices, parts, strict=False):
            assert held[part] <= peak[placed.name].total_bytes


def test_activations_count_with_a_part_that_makes_and_reads_them() -> None:
    """f0, 1024 bytes, is read by the gradient of layer 1, f1 by its own, as f2 is. The
    weights of layer 2 take 4 KiB."""
    made = Builder()
    made.variable("w", 4096, layer="layer2")
    made.add("x", 0.0, type="Placeholder", size_bytes=256, layer="layer0")
    made.add("f0", 1.0, "x", size_bytes=1024, layer="layer0")
    made.add("f1", 1.0, "f0", size_bytes=512, layer="layer1")
    made.add("r", 0.0, type="ReadVariableOp", size_bytes=4096, layer="layer2", variables=["w"])
    made.add("f2", 1.0, "f1", "r", size_bytes=256, layer="layer2")
    made.add("b2", 1.0, "f2", phase=Phase.BACKWARD, layer="layer2")
    made.add("b1", 1.0, "b2", "f0", "f1", phase=Phase.BACKWARD, layer="layer1")
    made.add("b0", 1.0, "b1", phase=Phase.BACKWARD, layer="layer0")
    costed = made.costed()
    items = coarsen(costed)
    held = least_held_bytes(costed, items, forward_order(costed, items), "f2")
    assert held[0].tolist() == [0, 0, 1024 + 512, 1024 + 512 + 4096 + 256]
    assert held[1].tolist() == [0, 0, 512, 512 + 4096 + 256]


@pytest.mark.parametrize(
    ("memory_bytes", "expected"), [(2**20, 8.0), (2 * 5120, 8.0), (2 * 5120 - 1, 4 * 12.0), (5119, 4 * 12.0)]
)
def test_parts_for_which_there_is_no_room_are_not_of_a_cut(memory_bytes: int, expected: float) -> None:
    """Each of four layers has 4 KiB of weights and keeps 1 KiB. Two devices with room for two of them take 4 + 2 x 2 s;
    with less room there is no cut, and four times what one device takes is as far as bounds go."""
    wire = link(0.0, 2.0**60)
    costed = pipeline(4, forward=1.0, backward=2.0).costed(topology(2, wire=wire, memory_bytes=memory_bytes))
    items = coarsen(costed)
    assert one_piece_bound(costed, items, forward_order(costed, items)).seconds == pytest.approx(expected)
