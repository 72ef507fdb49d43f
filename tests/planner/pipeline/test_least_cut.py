"""Cuts of a row of items against all cuts."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from partitioner.planner.pipeline.least_cut import Places, end_ranges, least_cut

NUM_ITEMS = 5
POSITIONS = np.arange(NUM_ITEMS + 1)
ANYWHERE = Places(POSITIONS[:, None], POSITIONS[None, :].repeat(NUM_ITEMS + 1, axis=0))
tables = st.lists(
    arrays(float, (NUM_ITEMS + 1, NUM_ITEMS + 1), elements=st.sampled_from([0.0, 1.0, 2.0, 3.0])),
    min_size=2,
    max_size=3,
)


def costs_of_cuts(costs: list[np.ndarray]) -> dict[tuple[int, ...], float]:
    """The largest cost of a stage, by where all stages end."""
    cuts = ([*ends, NUM_ITEMS] for ends in combinations(range(1, NUM_ITEMS), len(costs) - 1))
    return {tuple(ends): max(table[at] for table, at in zip(costs, pairwise([0, *ends]), strict=True)) for ends in cuts}


def of_stages(costs: list[np.ndarray]) -> list[np.ndarray]:
    """The same costs, infinite where a stage has no item."""
    return [np.where(np.tri(NUM_ITEMS + 1, dtype=bool), np.inf, table) for table in costs]


@given(tables)
def test_the_least_cut_is_that_of_all_cuts(costs: list[np.ndarray]) -> None:
    everywhere = [ANYWHERE] * len(costs)
    found, every = least_cut(of_stages(costs), everywhere, np.zeros(NUM_ITEMS + 1)), costs_of_cuts(costs)
    assert found[1] == min(every.values()) == every[tuple(found[0] or ())]


@given(tables, st.sampled_from([0.0, 1.0, 2.0]))
def test_ranges_are_those_of_all_cuts_that_cost_no_more(costs: list[np.ndarray], most: float) -> None:
    cuts = [ends for ends, cost in costs_of_cuts(costs).items() if cost <= most]
    ranges = end_ranges(of_stages(costs), [ANYWHERE] * len(costs), most, NUM_ITEMS)
    if cuts:
        assert ranges == tuple((min(at), max(at)) for at in list(zip(*cuts, strict=True))[:-1])
    else:
        assert all(first > last for first, last in ranges)


def test_no_cut_of_infinite_costs() -> None:
    never = [np.full((NUM_ITEMS + 1, NUM_ITEMS + 1), np.inf)] * 2
    assert least_cut(never, [ANYWHERE] * 2, np.zeros(NUM_ITEMS + 1)) == (None, pytest.approx(float("inf")))


@given(tables, st.data())
def test_stages_that_may_start_only_somewhere(costs: list[np.ndarray], data: st.DataObject) -> None:
    starts = [range(1), *(range(*sorted(data.draw(st.tuples(at, at)))) for at in [st.integers(0, NUM_ITEMS)] * 2)]
    starts = [of_stage or range(NUM_ITEMS) for of_stage in starts[: len(costs)]]
    where = [Places(ANYWHERE.starts[some.start : some.stop], ANYWHERE.ends[some.start : some.stop]) for some in starts]
    some_costs = [table[at.starts[:, 0]] for table, at in zip(of_stages(costs), where, strict=True)]
    cuts = {
        ends: cost
        for ends, cost in costs_of_cuts(costs).items()
        if all(start in of_stage for start, of_stage in zip([0, *ends], starts, strict=False))
    }
    ends, cost = least_cut(some_costs, where, np.zeros(NUM_ITEMS + 1))
    assert cost == min(cuts.values(), default=np.inf)
    assert (cuts[tuple(ends)] == cost) if ends else not cuts
    ranges = end_ranges(some_costs, where, 1.0, NUM_ITEMS)
    cheap = [ends for ends, cost in cuts.items() if cost <= 1.0]
    expected = [(min(at), max(at)) for at in zip(*cheap, strict=True)][:-1]
    assert all(first > last for first, last in ranges) if not cheap else list(ranges) == expected
