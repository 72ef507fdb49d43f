"""Placements next to one."""

from __future__ import annotations

from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from partitioner.planner.placement.neighbours import moved_ends, single_changes


def test_moves_to_a_neighbours_device_come_first() -> None:
    changes = single_changes((0, 0, 1), [{1}, {0, 2}, {1}], 3)
    assert list(islice(changes, 2)) == [(0, 1, 1), (0, 0, 0)]


def test_exchanges_come_last() -> None:
    changes = list(single_changes((0, 1), [set(), set()], 2))
    assert changes == [(1, 1), (0, 0), (1, 0)]


def test_an_end_moves_either_way_in_the_order_of_the_items() -> None:
    """Items 2, 0, 1 in this order; one of them on the first device, so that its end moves by one item or out of it."""
    moved = set(moved_ends((1, 1, 0), order=(2, 0, 1)))
    assert moved == {(0, 1, 0), (0, 0, 0), (1, 1, 1)}


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_parts_stay_consecutive_and_in_order(sizes: list[int]) -> None:
    row = tuple(part for part, size in enumerate(sizes) for _ in range(size))
    for moved in moved_ends(row, range(len(row))):
        assert moved != row
        assert all(before <= behind for before, behind in pairwise(moved))
        assert len([place for place in range(len(row)) if moved[place] != row[place]]) <= 8
