"""The bound on a step: by hand, and below every placement there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from graphs import Builder, chain, random_graphs, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.op_graph import Phase
from partitioner.planner.bounds.step_time import least_load_seconds, lower_bound_seconds
from partitioner.planner.simulate.unpipelined import simulate


def test_a_chain_is_bound_by_its_path() -> None:
    assert lower_bound_seconds(chain([1.0, 2.0, 4.0], [4, 4, 4]).costed()) == 7.0


def test_independent_ops_are_bound_by_their_work() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"o{index}", 1.0)
    assert lower_bound_seconds(made.costed(topology(3))) == 2.0


def test_control_edges_are_part_of_a_path() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, after=["a"])
    assert lower_bound_seconds(made.costed()) == 2.0


def test_every_op_is_taken_at_its_fastest() -> None:
    assert lower_bound_seconds(chain([1.0, 2.0], [4, 4]).costed(topology(2, speeds=[1.0, 2.0]))) == 1.5


def test_a_device_of_half_the_speed_counts_as_half_a_device() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"o{index}", 1.0)
    assert lower_bound_seconds(made.costed(topology(2, speeds=[1.0, 0.5]))) == 4.0


def test_a_device_that_several_replicas_share_updates_once() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"o{index}", 1.0)
    made.add("u", 1.0, phase=Phase.UPDATE)
    shared = replace(made.costed(topology(2)), sharing=(1, 2))
    assert shared.seconds == ((1.0, 2.0),) * 6 + ((1.0, 1.0),)
    assert lower_bound_seconds(shared) == 4.0


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 5.0])] * 2), max_size=6))
def test_no_spread_leaves_each_device_less(rows: list[tuple[float, float]]) -> None:
    least = min(
        max(sum(row[device] for row, on in zip(rows, devices, strict=True) if on == device) for device in range(2))
        for devices in product(range(2), repeat=len(rows))
    )
    seconds = np.array(rows, dtype=float).reshape(-1, 2)
    assert least_load_seconds(seconds) <= least * (1 + 1e-12)


@settings(max_examples=60)
@given(random_graphs(max_ops=5), st.sampled_from([[1.0, 1.0], [1.0, 4.0], [1.0, 2.0, 0.5]]))
def test_no_placement_is_faster(made: Builder, speeds: list[float]) -> None:
    costed = made.costed(topology(len(speeds), speeds=speeds))
    bound = lower_bound_seconds(costed)
    names = [op.name for op in made.ops]
    for devices in product(range(len(speeds)), repeat=len(names)):
        placement = dict(zip(names, devices, strict=True))
        assert simulate(costed, placement).step_seconds >= bound * (1 - 1e-12)
