"""Climbing: to the best neighbour, by moves and by exchanges, and no further than allowed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from partitioner.planner.placement.local_search import local_search
from partitioner.planner.placement.neighbours import single_changes

Assignment = tuple[int, ...]


def load(assignment: Assignment, _: object = None) -> tuple[float, ...]:
    """Load of the fuller of two devices."""
    weights = (5, 4, 3, 3, 3)
    return (max(sum(w for w, d in zip(weights, assignment, strict=True) if d == i) for i in range(2)),)


def climb(start: Assignment, objective_key=load) -> Assignment:
    def neighbours(assignment: Assignment) -> Iterator[Assignment]:
        return single_changes(assignment, [set()] * len(start), 2)

    return local_search(start, neighbours=neighbours, objective_key=objective_key)


def test_moves_and_exchanges_reach_the_even_split() -> None:
    assert load(climb((0, 0, 0, 0, 0))) == (9,)


def test_an_exchange_is_found_where_no_move_helps() -> None:
    # 5 + 3 against 4 + 3 + 3: any move makes it worse; 5 and 4 + 4 and 5 changing places evens it out.
    assert load((0, 1, 0, 1, 1)) == (10,)
    assert load(climb((0, 1, 0, 1, 1))) == (9,)


def test_the_key_of_what_is_no_better_need_not_be_its_own() -> None:
    def vague(assignment: Assignment, to_beat: tuple[float, ...] | None) -> tuple[float, ...]:
        key = load(assignment)
        return to_beat if to_beat is not None and key >= to_beat else key

    for start in product(range(2), repeat=5):
        assert climb(start, vague) == climb(start)


def test_it_stops_when_told_to() -> None:
    seen: list[Assignment] = []

    def limited(assignment: Assignment, _: object) -> tuple[float, ...] | None:
        seen.append(assignment)
        return load(assignment) if len(seen) <= 3 else None

    best = climb((0, 0, 0, 0, 0), limited)
    assert load(best) <= load((0, 0, 0, 0, 0))
    assert len(seen) == 4
