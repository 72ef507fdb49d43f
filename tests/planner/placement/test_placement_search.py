"""Placements of the step as one graph: what is tried, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from graphs import Builder, link, pipeline, random_graphs, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.deadline import Deadline
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.placement.baselines import balanced_bytes, balanced_compute
from partitioner.planner.placement.evaluator import PlacementEvaluator
from partitioner.planner.placement.search import PlacementSearch

KIB = 2**10


def search_of(costed: CostedGraph, coarsening: Coarsening, known_seconds: float = math.inf) -> PlacementSearch:
    return PlacementSearch(
        costed=costed,
        coarsening=coarsening,
        evaluator=PlacementEvaluator(costed, coarsening),
        strategy=Strategy.AUTO,
        objective=Objective.THROUGHPUT,
        time_limit_seconds=10.0,
        deadline=Deadline.after(60.0),
        seed=0,
        known_seconds=known_seconds,
    )


def test_where_memory_is_short_stages_of_equal_bytes_are_tried_before_the_solver() -> None:
    """Eleven equal layers, of which the first two keep half of all bytes: 6,064 and 6,464 KiB, where 7,000 fit."""
    made = pipeline(11, saved_bytes=[size * KIB for size in (3000, 3000, 64, *[800] * 8)], gradient_bytes=256)
    costed = made.costed(topology(2, wire=link(0.0, 2.0**30), memory_bytes=7000 * KIB))
    coarsening = coarsen(costed)
    assert balanced_compute(costed, coarsening, 2) == [(0,) * 5 + (1,) * 6]
    assert balanced_bytes(costed, coarsening, 2) == [(0,) * 3 + (1,) * 8]

    search = search_of(costed, coarsening)
    starts = search.starts()
    assert not any(search.evaluator(start).fits for start in starts)
    search.run(starts, lambda: None)
    tried = list(search.evaluator.evaluations.values())
    assert [tried[len(starts)].assignment] == balanced_bytes(costed, coarsening, 2)
    assert tried[len(starts)].fits


def test_once_time_is_over_the_starts_with_the_most_room_are_evaluated_and_few_of_them() -> None:
    """Bug: a ResNet50 of 8,192 rows on 64 GPUs was refused after 36 s, 20 of them for starts on 2 to 64 devices."""
    made = pipeline(6, saved_bytes=[KIB * size for size in (1, 2, 3, 4, 5, 6)], gradient_bytes=64, parameter_bytes=64)
    roomy = search_of(made.costed(topology(2)), coarsen(made.costed(topology(2))))
    starts = list(product(range(2), repeat=len(roomy.coarsening.items)))
    limit = min(roomy.evaluator(start).largest_peak_bytes for start in starts) - 1
    costed = made.costed(topology(2, memory_bytes=limit))
    search = replace(search_of(costed, coarsen(costed)), deadline=Deadline(at=0.0, is_soft=True))
    search._improve(starts)
    shares = {start: search._largest_share(start) for start in starts}
    tried = [shares[start] for start in search.evaluator.evaluations]
    assert tried == sorted(shares.values())[:8]
    assert max(tried) <= 1 < max(shares.values())


def searched(known_seconds: float) -> PlacementSearch:
    """Two rows of three ops, which the best two devices take in 6 s; evaluated from one device, which takes 12 s."""
    made = Builder()
    for row in "ab":
        for number in range(3):
            made.add(f"{row}{number}", 2.0, *([f"{row}{number - 1}"] if number else []), layer=f"{row}{number}")
    costed = made.costed(topology(2, wire=link(0.0, 2.0**40)))
    coarsening = coarsen(costed)
    search = search_of(costed, coarsening, known_seconds)
    search._improve([(0,) * len(coarsening.items)])
    return search


@pytest.mark.parametrize("known_seconds", [math.inf, 12.0, 11.0])
def test_a_start_within_reach_of_other_layouts_is_improved(known_seconds: float) -> None:
    assert min(made.step_seconds for made in searched(known_seconds).fitting) == 6.0


def test_a_start_out_of_reach_of_other_layouts_is_left() -> None:
    assert [made.step_seconds for made in searched(10.0).fitting] == [12.0]


@settings(max_examples=30, deadline=None)
@given(random_graphs(max_ops=5), st.sampled_from([2**40, 2**11]))
def test_a_step_timed_before_its_memory_is_known_is_the_one_evaluated(made: Builder, limit: int) -> None:
    costed = made.costed(topology(2, memory_bytes=limit))
    coarsening = coarsen(costed)
    before, alone = PlacementEvaluator(costed, coarsening), PlacementEvaluator(costed, coarsening)
    for assignment in product(range(2), repeat=len(coarsening.items)):
        seconds = before.first_seconds(assignment)
        assert before(assignment) == alone(assignment)
        if before(assignment).fits:
            assert before(assignment).step_seconds == seconds
    assert before.num_timed == 2 ** len(coarsening.items)


@pytest.mark.parametrize(("strategy", "expected"), [(Strategy.LAYER_SPLIT, {8}), (Strategy.AUTO, {*range(2, 8)})])
def test_cuts_that_the_strategy_forbids_are_not_tried_in_place_of_others(
    strategy: Strategy, expected: set[int]
) -> None:
    """Bug: once as many fitted as are tried, the only one with a part for each device was left out of a layer split."""
    costed = pipeline(8).costed(topology(8))
    coarsening = coarsen(costed)
    order = forward_order(costed, coarsening)
    cuts = [tuple(min(place, parts - 1) for place in map(order.index, range(8))) for parts in range(2, 9)]
    search = replace(search_of(costed, coarsening), strategy=strategy)
    search.improve_cuts(cuts, order)
    tried = {len(set(cut)) for cut in cuts if cut in search.evaluator.evaluations}
    assert tried == expected
