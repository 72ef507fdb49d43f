"""What an allocator needs of a region, against layouts worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.arena import STEP_BYTES, Arena, arena_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ([], 0),
        ([("a", 1)], 256),
        ([("a", 256), ("b", 512)], 768),
        # c goes where a was.
        ([("a", 256), ("b", 512), ("a", 0), ("c", 256)], 768),
        # c is too large for where a was.
        ([("a", 256), ("b", 256), ("a", 0), ("c", 512)], 256 + 256 + 512),
        # a's place is cut in two.
        ([("a", 1024), ("b", 256), ("a", 0), ("c", 512), ("d", 512)], 1024 + 256),
        # c takes all of a's place, though it needs but 768 of 1024.
        ([("a", 1024), ("b", 256), ("a", 0), ("c", 768), ("d", 256)], 1024 + 256 + 256),
        # The smallest place that is large enough.
        (
            [("a", 2048), ("x", 256), ("b", 512), ("y", 256), ("a", 0), ("b", 0), ("c", 512), ("d", 2048)],
            2048 + 256 + 512 + 256,
        ),
        # Neighbours that are let go are one place again; at the end, it grows.
        ([("a", 256), ("b", 256), ("x", 256), ("a", 0), ("b", 0), ("c", 512)], 768),
        ([("a", 256), ("b", 256), ("a", 0), ("b", 0), ("c", 1024)], 1024),
        # 200 MiB more than needed are given back, though the place is not twice as large.
        ([("a", 500 * MIB), ("x", 256), ("a", 0), ("c", 300 * MIB), ("d", 200 * MIB)], 500 * MIB + 256),
    ],
)
def test_layouts_by_hand(changes: list[tuple[str, int]], needed: int) -> None:
    assert arena_bytes(changes) == needed


def test_what_was_never_given_out_can_be_given_back() -> None:
    arena = Arena()
    arena.drop("nothing")
    arena.take("nothing", 0)
    assert arena.used_bytes == 0


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5000)), max_size=60))
def test_it_needs_at_least_what_is_held_and_never_more_than_all_of_it(moves: list[tuple[int, int]]) -> None:
    arena, held, most, total = Arena(), dict[int, int](), 0, 0
    for key, size in moves:
        if key in held:
            arena.drop(key)
            del held[key]
        else:
            arena.take(key, size)
            held[key] = -(-size // STEP_BYTES) * STEP_BYTES
            total += held[key]
        most = max(most, sum(held.values()))
    assert most <= arena.used_bytes <= total
