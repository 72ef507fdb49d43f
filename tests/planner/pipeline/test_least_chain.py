"""The least time in which a chain comes back from all parts and their work ends, beside all cuts."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from partitioner.planner.pipeline.boundary_seconds import BoundarySeconds
from partitioner.planner.pipeline.chain_seconds import PartSeconds
from partitioner.planner.pipeline.least_chain import LeastChain

Floats = NDArray[np.float64]
NUM_ITEMS = 5


def tables(least: int = 0) -> st.SearchStrategy[Floats]:
    shape = NUM_ITEMS + 1, NUM_ITEMS + 1
    values = st.lists(st.integers(least, 9), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    return values.map(lambda made: np.array(made, dtype=float).reshape(shape))


def cuts(num_items: int, num_parts: int) -> list[list[tuple[int, int]]]:
    return [[*pairwise((0, *ends, num_items))] for ends in combinations(range(1, num_items), num_parts - 1)]


def cut_seconds(seconds: PartSeconds, least: Floats, cut: list[tuple[int, int]], *, is_least_before: bool) -> float:
    """As the docstring has it: what comes before a part is that of this cut, or the least of all up to its start."""
    most, behind = 0.0, 0.0
    for number, (start, end) in reversed([*enumerate(cut)]):
        others = cuts(start, number) if number and is_least_before else [cut[:number]]
        before = min(sum(seconds.there[part] for part in other) for other in others)
        most = max(most, before + seconds.there[start, end] + behind + seconds.rest[start, end], least[start, end])
        behind += seconds.there[start, end] + seconds.back[start, end]
    return max(most, behind)


@given(tables(least=1), tables(), tables(), tables(), st.integers(1, 4))
def test_no_cut_takes_less_and_one_takes_hardly_more(
    there: Floats, back: Floats, rest: Floats, least: Floats, num_parts: int
) -> None:
    seconds = PartSeconds(there=there, back=back, rest=rest)
    before_any, before_cut = (
        {tuple(cut): cut_seconds(seconds, least, cut, is_least_before=is_least) for cut in cuts(NUM_ITEMS, num_parts)}
        for is_least in (True, False)
    )
    chain = LeastChain(seconds=seconds, beside=BoundarySeconds.none(rest), least=least)
    bound, ends = chain.bound(num_parts, most_seconds=1_000.0)
    assert ends is not None
    assert bound >= min(before_any.values()) - 1e-3
    assert bound <= before_any[*pairwise([0, *ends])] + 1e-3
    assert type(bound) is float  # a plan's file takes none of NumPy's
    raised, _ = chain.bound(num_parts, most_seconds=1_000.0, least_seconds=bound, rounds=2)
    assert bound <= raised <= min(before_cut.values()) + 1e-3


def test_nothing_is_said_of_what_takes_longer_than_is_asked() -> None:
    nothing = np.zeros((3, 3))
    seconds = PartSeconds(there=nothing + 1.0, back=nothing + 1.0, rest=nothing)
    bounds = LeastChain(seconds=seconds, beside=BoundarySeconds.none(nothing), least=nothing)
    assert bounds.bound(2, most_seconds=3.0) == (3.0, None)
    assert bounds.bound(2, most_seconds=9.0) == (pytest.approx(4.0), [1, 2])
