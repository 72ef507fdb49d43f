"""Gradients share messages: by kind, in order, no larger than a bucket, and in few of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partitioner.stages.buckets import BUCKET_BYTES, buckets

MIB = 2**20


def test_by_hand() -> None:
    tensors = [("a", "f", 20 * MIB), ("b", "h", 4), ("c", "f", 12 * MIB), ("d", "f", 1), ("e", None, 4), ("g", None, 4)]
    assert buckets(tensors) == [["a", "c"], ["b"], ["d"], ["e"], ["g"]]


def test_a_tensor_larger_than_a_bucket_goes_alone() -> None:
    assert buckets([("a", 0, 4), ("b", 0, 2 * BUCKET_BYTES), ("c", 0, 4)]) == [["a", "c"], ["b"]]


def test_a_later_tensor_fills_an_earlier_bucket() -> None:
    sizes = {"a": 20, "b": 20, "c": 12, "d": 16, "e": 12, "f": 16}
    assert buckets((name, 0, size * MIB) for name, size in sizes.items()) == [["a", "c"], ["b", "e"], ["d", "f"]]


@given(st.lists(st.tuples(st.sampled_from(["f", "h", None]), st.integers(0, 40 * MIB)), max_size=30))
def test_every_tensor_is_in_one_bucket_of_its_kind(given: list[tuple[str | None, int]]) -> None:
    made = buckets((index, kind, size) for index, (kind, size) in enumerate(given))
    assert sorted(index for bucket in made for index in bucket) == list(range(len(given)))
    assert [bucket[0] for bucket in made] == sorted(bucket[0] for bucket in made)
    for bucket in made:
        assert bucket == sorted(bucket)
        assert len({given[index][0] for index in bucket}) == 1
        assert len(bucket) == 1 or sum(given[index][1] for index in bucket) <= BUCKET_BYTES
        assert given[bucket[0]][0] is not None or len(bucket) == 1


@given(st.lists(st.integers(0, 40 * MIB), max_size=30))
def test_no_two_buckets_would_fit_into_one(sizes: list[int]) -> None:
    taken = [sum(sizes[index] for index in bucket) for bucket in buckets((n, 0, size) for n, size in enumerate(sizes))]
    assert all(one + other > BUCKET_BYTES for place, one in enumerate(taken) for other in taken[:place])
