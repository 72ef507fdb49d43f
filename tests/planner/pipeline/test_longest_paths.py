"""The least step of a schedule over all cuts: against every cut, and against the papers' figures for equal stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from bounding import closer_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from partitioner.planner.pipeline.calls import Calls
from partitioner.planner.pipeline.solve.client import least_steps
from partitioner.planner.pipeline.solve.corners import Corners
from partitioner.planner.pipeline.solve.problem import BoundRequest, CutProblem
from partitioner.stages.schedules import ScheduleKind, device_orders

INTERLEAVED, ONE_F_ONE_B = ScheduleKind.INTERLEAVED, ScheduleKind.ONE_F_ONE_B
SHAPES = [
    (INTERLEAVED, 4, 2, 2), (INTERLEAVED, 4, 2, 4), (ONE_F_ONE_B, 3, 3, 4), (ONE_F_ONE_B, 2, 2, 3),
    (ScheduleKind.GPIPE, 3, 3, 2), (ScheduleKind.SEQUENTIAL, 3, 3, 2),
]  # fmt: skip
IN_PARTS = [
    (ScheduleKind.ZB_H1, 3, 3, 4), (ScheduleKind.ZB_H2, 3, 3, 5), (ScheduleKind.ZB_H2, 2, 2, 3),
    (ScheduleKind.ZB_V, 3, 2, 3),
]  # fmt: skip
"""A schedule, stages, devices and microbatches."""


def sums(values: list[float]) -> tuple[float, ...]:
    return (0.0, *np.cumsum(values).tolist())


Shape = tuple[ScheduleKind, int, int, int]


def problem(
    forward: list[float], backward: list[float], summing: list[float], shape: Shape, **others: Any
) -> CutProblem:
    kind, num_stages, num_devices, count = shape
    there, back = (others.pop(name, (0.0,) * (num_stages - 1)) for name in ("there_seconds", "back_seconds"))
    return CutProblem(
        forward=sums(forward),
        backward=sums(backward),
        summing=sums(summing),
        devices=kind.stages_on(tuple(range(num_devices))),
        num_microbatches=count,
        schedule=kind,
        training=True,
        there_seconds=there,
        back_seconds=back,
        routes=tuple(
            ((there_seconds, 0.0), (back_seconds, 0.0)) for there_seconds, back_seconds in zip(there, back, strict=True)
        ),
        **{
            "call_seconds": 0.0,
            "crossing_bytes": ((1.0,) * (len(forward) + 1),) * 2,
            "bound_seconds": 0.0,
            "most_work": sum(forward) + sum(backward),
            "crossed": (1, len(forward) - 1),
            "keeps": (False,) * num_stages,
            "ranges": ((1, len(forward) - 1),) * (num_stages - 1),
            **dict.fromkeys(("weights", "once", "updating", "num_leaving"), (0,) * (len(forward) + 1)),
            **others,
        },
    )


def step_of(made: CutProblem, ends: tuple[int, ...], recompute: tuple[int, ...] = ()) -> float:
    """The step of one cut, by where its stages but the last end; those that recompute leave nothing for later."""
    orders = device_orders(made.schedule, [str(device) for device in made.devices], made.num_microbatches)
    first, last = (sum(end < limit for end in ends) for limit in (made.crossed[0], made.crossed[1] + 1))
    calls = Calls(orders, made.devices, range(first, last + 1))
    stages = [*pairwise([0, *ends, made.num_items])]
    every = made.forward, made.backward, made.weights, made.once, made.summing, made.updating
    forward, backward, weights, *others = (np.array([of[end] - of[start] for start, end in stages]) for of in every)
    weights[[*recompute]] = 0.0
    seconds = calls.seconds_of(forward, backward, weights, made.call_seconds)
    for device in dict.fromkeys(made.devices):
        own = [stage for stage, other in enumerate(made.devices) if other == device]
        others[0][own[0]] += made.call_seconds * (sum(others[0][stage] for stage in own) > 0)
    step = calls.step_seconds(seconds, (made.there_seconds, made.back_seconds), *others)
    return step + made.call_seconds * (made.updating[-1] > 0)


def best_step(made: CutProblem) -> float:
    """The least step over all cuts."""
    return min(step_of(made, ends) for ends in combinations(range(1, made.num_items), len(made.devices) - 1))


def closer(made: CutProblem, *, enough: float = 1e9, seconds: float = 20.0) -> Any:
    (found,) = closer_steps(
        BoundRequest(problems=(made,), enough_seconds=enough, seconds=seconds, most_calls=10_000_000)
    )
    return found


some_seconds = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]), min_size=8, max_size=8)


@settings(max_examples=60, deadline=None)
@given(*[some_seconds] * 5, st.sampled_from(SHAPES), st.sampled_from([0.0, 0.3]))
def test_branching_ends_at_the_best_cut(forward, backward, summing, once, updating, shape, hop: float) -> None:
    hops = tuple(hop * (1 + boundary % 2) for boundary in range(shape[1] - 1))
    others = {"once": sums(once), "updating": sums(updating), "there_seconds": hops, "back_seconds": hops[::-1]}
    made = problem(forward, backward, summing, shape, call_seconds=0.1, **others)
    best, found = best_step(made), closer(made)
    assert found.seconds <= best * (1 + 1e-9)
    assert found.seconds == pytest.approx(best, rel=1e-3)
    assert step_of(made, found.ends) == pytest.approx(best, rel=1e-3)


of_a_layer = st.lists(st.sampled_from([0.0, 0.7, 1.0, 2.0, 5.0]), min_size=3, max_size=3)
ends_of_items = st.lists(st.sampled_from([0.3, 4.0]), min_size=1, max_size=2)


@settings(max_examples=60, deadline=None)
@given(of_a_layer, of_a_layer, of_a_layer, ends_of_items, ends_of_items, st.sampled_from(SHAPES))
def test_branching_ends_at_the_best_cut_of_layers_that_repeat(forward, backward, summing, first, last, shape) -> None:
    made = problem(*([*first, *3 * of_layer, *last] for of_layer in (forward, backward, summing)), shape)
    best, found = best_step(made), closer(made)
    assert found.seconds <= best * (1 + 1e-9)
    assert found.seconds == pytest.approx(best, rel=1e-3)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 2), min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_positions_of_a_range_are_means_of_its_corners(layer, times: int, data: st.DataObject) -> None:
    sums_of_items = np.cumsum([(0, 0), *layer * times], axis=0).T
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(layer) * times)] * 2)))
    corners = np.flatnonzero(Corners(sums_of_items / 100.0).within(first, last))
    assert {first, last} <= {*corners.tolist()}
    shares = np.vstack([sums_of_items[:, corners], np.ones(len(corners))])
    for position in range(first, last + 1):
        _, missed = nnls(shares, [*sums_of_items[:, position], 1.0])
        assert missed < 1e-9


@settings(max_examples=60, deadline=None)
@given(*[some_seconds] * 4, st.sampled_from(IN_PARTS), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())
def test_bounds_of_backwards_in_parts(
    forward, backward, weights, summing, shape, call: float, may_recompute: bool
) -> None:
    """Stages that recompute run their backward in one part, which may even be faster."""
    both = [b + w for b, w in zip(backward, weights, strict=True)]
    leaving = (0, *np.cumsum([w > 0 for w in weights]).tolist())
    others = {"weights": sums(weights), "num_leaving": leaving, "keeps": (not may_recompute,) * shape[1]}
    made = problem(forward, both, summing, shape, call_seconds=call, **others)
    stages = range(shape[1])
    most = len(stages) if may_recompute else 0
    some = [those for count in range(most + 1) for those in combinations(stages, count)]
    cuts = [*combinations(range(1, made.num_items), len(stages) - 1)]
    best, found = min(step_of(made, ends, those) for ends in cuts for those in some), closer(made)
    assert found.seconds <= best * (1 + 1e-9)
    assert found.seconds >= (0.8 if may_recompute else 1 - 1e-3) * best
    assert step_of(made, found.ends) >= best


@settings(max_examples=40, deadline=None)
@given(some_seconds, some_seconds, st.sampled_from(SHAPES), st.sampled_from([0.2, 0.5, 0.8]))
def test_a_bound_that_is_enough_holds_too(forward, backward, shape, share: float) -> None:
    made = problem(forward, backward, [0.0] * 8, shape, call_seconds=0.1)
    best = best_step(made)
    assert closer(made, enough=share * best).seconds <= best * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(some_seconds, some_seconds, st.sampled_from(SHAPES), st.integers(0, 2), st.integers(0, 2))
def test_stages_without_a_backward_wait_for_none(forward, backward, shape, ahead: int, behind: int) -> None:
    backward = [0.0] * ahead + backward[ahead : 8 - behind] + [0.0] * behind
    made = problem(forward, backward, [0.0] * 8, shape, call_seconds=0.1, crossed=(1 + ahead, 7 - behind))
    best, found = best_step(made), closer(made)
    assert found.seconds <= best * (1 + 1e-9)
    assert found.seconds == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize(("num_devices", "count"), [(2, 2), (2, 8), (4, 8)])
def test_equal_stages_take_what_the_papers_say(num_devices: int, count: int) -> None:
    """Two stages on each device shorten the bubble of S - 1 microbatches by half (Narayanan et al. 2021)."""
    num_stages = 2 * num_devices
    shape = (INTERLEAVED, num_stages, num_devices, count)
    found = closer(problem([1.0] * num_stages, [2.0] * num_stages, [0.0] * num_stages, shape))
    assert found.ends == tuple(range(1, num_stages))
    assert found.seconds == pytest.approx(3.0 * (2 * count + num_devices - 1), rel=1e-5)


@pytest.mark.parametrize(("num_stages", "count"), [(2, 4), (4, 8), (4, 16)])
def test_equal_stages_of_backwards_in_parts_take_what_the_paper_says(num_stages: int, count: int) -> None:
    """With F, B and W alike a bubble of S - 1 of them for zb-h1, none for zb-h2 (Qi et al. 2023, table 1).

    Other devices end their work later than the first by what they start later.
    """
    ones, work = [1.0] * num_stages, 3.0 * count
    for kind, bubble in ((ScheduleKind.ZB_H1, num_stages - 1), (ScheduleKind.ZB_H2, num_stages - 1)):
        made = problem(ones, [2.0] * num_stages, [0.0] * num_stages, (kind, num_stages, num_stages, count))
        found = closer(replace(made, weights=sums(ones)))
        assert found.seconds == pytest.approx(work + bubble, rel=1e-5)


def test_cuts_outside_the_ranges_count_as_enough() -> None:
    forward, backward = [1.0, 1.0, 4.0, 1.0], [2.0, 2.0, 8.0, 2.0]
    made = problem(forward, backward, [0.0] * 4, (ONE_F_ONE_B, 2, 2, 4))
    assert closer(replace(made, ranges=((1, 1),))).seconds == pytest.approx(step_of(made, (1,)), rel=1e-5)
    assert closer(replace(made, ranges=((1, 1),)), enough=20.0).seconds == pytest.approx(20.0, rel=1e-5)
    assert closer(replace(made, ranges=((5, 0),)), enough=20.0).seconds == 20.0


def test_the_program_ends_though_an_item_leaves_next_to_nothing_for_later() -> None:
    """Bug: where rounding made that 3e-15 s, the process went round in circles and was killed, with no bound found."""
    forward = [0.06119, 0.05736, 0.03465, 0.03465, 0.03465, 0.1166, 0.3373, 0.01336, 0.03465, 0.05736, 0.2266, 0.1218]
    backward = [0.05332, 0.04972, 0.0949, 0.0949, 0.0949, 0.1797, 0.5708, 0.01336, 0.1093, 0.04016, 0.3598, 0.2935]
    weights = [0.05332, 0.04972, 0.06025, 0.06025, 0.06025, 0.0, 0.0, 0.0, 0.07464, 0.04016, 0.238, 0.1663]
    forward, backward, weights = [*forward, 1.824, 0.9501], [*backward, 3.751, 0.9425], [*weights, 1.845, 3.469e-15]
    made = problem(
        forward,
        backward,
        [0.0] * len(forward),
        (ScheduleKind.ZB_V, 3, 2, 4),
        weights=sums(weights),
        keeps=(True,) * 3,
        call_seconds=7e-2,
        num_leaving=(0, *np.cumsum([later > 0 for later in weights]).tolist()),
    )
    (found,) = least_steps(BoundRequest(problems=(made,), enough_seconds=1e9, seconds=20.0))
    assert 0.95 * best_step(made) <= found.seconds <= best_step(made)


def test_the_process_answers_the_same_and_a_killed_one_leaves_what_is_known() -> None:
    shape = (INTERLEAVED, 4, 2, 4)
    made = problem([1.0, 2.0, 1.0, 3.0, 1.0], [2.0, 4.0, 2.0, 6.0, 2.0], [0.0] * 5, shape, bound_seconds=1.5)
    request = BoundRequest(problems=(made,), enough_seconds=1e9, seconds=20.0)
    assert least_steps(request) == closer_steps(request)
    (known,) = least_steps(BoundRequest(problems=(made,), enough_seconds=1e9, seconds=-5.0))
    assert known.seconds == 1.5
