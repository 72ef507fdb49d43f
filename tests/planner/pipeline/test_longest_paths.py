"""The least step of a schedule over all cuts: against every cut, and against the papers' figures for equal stages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.planner.pipeline.item_order import between
from partitioner.planner.pipeline.longest_paths import Calls, CutSeconds, least_step, seconds_of
from partitioner.stages.schedules import ScheduleKind, device_orders

SHAPES = [
    (ScheduleKind.INTERLEAVED, 4, 2, 2), (ScheduleKind.INTERLEAVED, 4, 2, 4), (ScheduleKind.ONE_F_ONE_B, 3, 3, 4),
    (ScheduleKind.ONE_F_ONE_B, 2, 2, 3), (ScheduleKind.GPIPE, 3, 3, 2), (ScheduleKind.SEQUENTIAL, 3, 3, 2),
]  # fmt: skip
"""A schedule, stages, devices and microbatches."""


def cuts_of(
    forward: list[float],
    backward: list[float],
    summing: list[float],
    num_stages: int,
    *,
    call: float = 0.0,
    hop: float = 0.0,
) -> CutSeconds:
    """Every stage may be any items, but for none."""
    there, back, last = (between(np.insert(np.cumsum(values), 0, 0.0)) for values in (forward, backward, summing))
    hops = np.full(len(forward) + 1, hop)
    return CutSeconds(
        possible=[np.where(np.tri(len(hops), dtype=bool), np.inf, 0.0)] * num_stages,
        forward=[there + call] * num_stages,
        backward=[back + call] * num_stages,
        there=hops,
        back=hops,
        summing=last[0],
    )


def calls_of(
    kind: ScheduleKind, num_stages: int, num_devices: int, count: int, going_back: range | None = None
) -> Calls:
    orders = device_orders(kind, [str(stage % num_devices) for stage in range(num_stages)], count)
    return Calls(orders, num_stages, range(num_stages) if going_back is None else going_back)


def step_of(cuts: CutSeconds, calls: Calls, ends: tuple[int, ...]) -> float:
    """The step of one cut: its longest path, and the sums of its first stage."""
    return calls.longest_path(seconds_of(cuts, ends))[0] + float(cuts.summing[ends[0]])


def all_ends(num_items: int, num_stages: int) -> list[tuple[int, ...]]:
    return [(*ends, num_items) for ends in combinations(range(1, num_items), num_stages - 1)]


some_seconds = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]), min_size=8, max_size=8)


@settings(max_examples=80, deadline=None)
@given(some_seconds, some_seconds, some_seconds, st.sampled_from(SHAPES), st.sampled_from([0.0, 0.3]))
def test_the_bound_is_below_every_cut(forward, backward, summing, shape, hop: float) -> None:
    kind, num_stages, num_devices, count = shape
    cuts = cuts_of(forward, backward, summing, num_stages, call=0.1, hop=hop)
    calls = calls_of(kind, num_stages, num_devices, count)
    best = min(step_of(cuts, calls, ends) for ends in all_ends(8, num_stages))
    for most_rounds in (1, 3, 40):
        least = least_step(cuts, calls, most_rounds=most_rounds)
        assert least.seconds <= best * (1 + 1e-9)
        assert least.found_seconds == pytest.approx(step_of(cuts, calls, least.ends))
    assert least.found_seconds <= 1.1 * best


@pytest.mark.parametrize(("num_devices", "count"), [(2, 2), (2, 8), (4, 8)])
def test_equal_stages_take_what_the_papers_say(num_devices: int, count: int) -> None:
    """Two stages on each device shorten the bubble of S - 1 microbatches by half (Narayanan et al. 2021)."""
    num_stages = 2 * num_devices
    cuts = cuts_of([1.0] * num_stages, [2.0] * num_stages, [0.0] * num_stages, num_stages)
    least = least_step(cuts, calls_of(ScheduleKind.INTERLEAVED, num_stages, num_devices, count))
    assert least.ends == tuple(range(1, num_stages + 1))
    assert least.seconds == pytest.approx(3.0 * (2 * count + num_devices - 1), rel=1e-3)


def test_unlike_items_are_bounded_within_some_percent() -> None:
    """Forty items in two stages on each of four devices: what stages wait for is a tenth of the step."""
    forward = np.random.default_rng(0).uniform(0.1, 1.0, 40).tolist()
    cuts = cuts_of(forward, [2 * seconds for seconds in forward], [0.0] * 40, 8)
    least = least_step(cuts, calls_of(ScheduleKind.INTERLEAVED, 8, 4, 4))
    work = 4 * 3 * sum(forward) / 4
    assert work < 0.9 * least.seconds
    assert least.seconds > 0.97 * least.found_seconds


def test_a_bound_is_no_larger_than_asked_for() -> None:
    cuts = cuts_of([1.0, 1.0, 4.0, 1.0, 1.0], [2.0, 2.0, 8.0, 2.0, 2.0], [0.0] * 5, 2)
    calls = calls_of(ScheduleKind.ONE_F_ONE_B, 2, 2, 4)
    assert least_step(cuts, calls).seconds == pytest.approx(
        min(step_of(cuts, calls, ends) for ends in all_ends(5, 2)), rel=2e-3
    )
    assert 50 <= least_step(cuts, calls, enough=50).seconds <= least_step(cuts, calls).seconds * (1 + 1e-9)


def test_without_a_possible_cut_the_bound_is_infinite() -> None:
    cuts = cuts_of([1.0, 1.0], [2.0, 2.0], [0.0, 0.0], 3)
    assert least_step(cuts, calls_of(ScheduleKind.ONE_F_ONE_B, 3, 3, 4)).seconds == np.inf


def test_stages_without_a_backward_wait_for_none() -> None:
    """The first item needs no gradient: as a stage of its own it passes all microbatches on, and is done."""
    cuts = cuts_of([1.0, 1.0], [0.0, 2.0], [0.0, 0.0], 2)
    free = least_step(cuts, calls_of(ScheduleKind.ONE_F_ONE_B, 2, 2, 3, range(1, 2)))
    assert free.seconds == pytest.approx(1.0 + 3 * 3.0, rel=1e-3)
