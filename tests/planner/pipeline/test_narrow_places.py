"""Items joined for the sake of size: places between them where little crosses are kept."""

from __future__ import annotations

from itertools import pairwise

from graphs import Builder, chain, pinned, random_graphs, topology
from hypothesis import given
from hypothesis import strategies as st

from partitioner.planner.model.lossless import lossless
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.narrow_places import between_narrow_places


def ends_of(made: Builder, max_items: int, **options) -> list[str]:
    """The last op of each item but the last one, of a step whose ops run in the order in which they were made."""
    costed = made.costed()
    joined = between_narrow_places(costed, lossless(costed, **options), max_items)
    return [ops[-1] for ops in joined.items][:-1]


def test_a_narrow_place_is_kept_and_wide_ones_beside_it_are_not() -> None:
    made = chain([1.0] * 8, [400, 400, 400, 8, 400, 400, 400, 400])
    assert ends_of(made, 2) == ["op3"]
    assert ends_of(made, 8) == [f"op{index}" for index in range(7)]


def test_a_wide_place_is_kept_where_much_work_lies_between_it_and_a_narrow_one() -> None:
    # From op0 to the end of op5, 100 s of op3 lie on the way; behind op1 and op5 it is 1 s to narrower places.
    made = chain([1.0, 1.0, 1.0, 100.0, 1.0, 1.0, 1.0], [8, 400, 400, 400, 400, 8, 8])
    assert ends_of(made, 4) == ["op0", "op3", "op5"]


def test_bug_a_residual_sum_joined_the_normalisation_behind_it() -> None:
    """Sums cost nothing by themselves where a kernel has them and the normalisation; joined to it, they left no place
    where one tensor crosses: stages of a ViT on eight hosts exchanged two, and a step took 123 ms in place of 91."""
    made = Builder()
    before = made.add("x", 0.0, type="Placeholder", size_bytes=1024)
    for index in range(6):
        norm = made.add(f"norm{index}", 0.01, before, size_bytes=1024, layer=f"norm{index}")
        inner = made.add(f"inner{index}", 1.0, norm, size_bytes=4096, layer=f"inner{index}")
        outer = made.add(f"outer{index}", 1.0, inner, size_bytes=1024, layer=f"outer{index}")
        before = made.add(f"add{index}", 0.001, before, outer, size_bytes=1024, layer=f"add{index}")
    assert ends_of(made, 6) == [f"add{index}" for index in range(5)]
    # Then the places between two heavy layers, for the sake of balance.
    assert set(ends_of(made, 12)) == {f"add{index}" for index in range(5)} | {f"inner{index}" for index in range(6)}


def test_items_pinned_to_different_devices_stay_apart() -> None:
    made = chain([1.0, 1.0, 1.0], [400, 400, 8])
    assert ends_of(made, 1, constraints=pinned(op0=0, op1=1)) == ["op0", "op1"]


@given(random_graphs(max_ops=12), st.integers(1, 6))
def test_each_item_has_consecutive_items_and_there_are_no_more_than_asked_for(made: Builder, max_items: int) -> None:
    costed = made.costed(topology(2))
    fine = lossless(costed)
    joined = between_narrow_places(costed, fine, max_items)
    assert len(joined.items) == min(len(fine.items), max_items)
    assert sorted(name for ops in joined.items for name in ops) == sorted(costed.graph.op)
    assert joined.is_lossless == (len(joined.items) == len(fine.items))
    in_order = [joined.item_of[fine.items[item][0]] for item in forward_order(costed, fine)]
    changes = sum(before != item for before, item in pairwise(in_order))
    assert changes == len(joined.items) - 1
    for ops in fine.items:
        assert len({joined.item_of[name] for name in ops}) == 1
