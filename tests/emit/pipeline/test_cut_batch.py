"""Batches cut into microbatches: every row once, and where programs are compiled at most two sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from partitioner.emit.pipeline.microbatches import cut_batch


def cut(rows: int, count: int, rows_each: int, *, adds_up: bool = False) -> tuple[list[Any], list[float], list[int]]:
    parts, weights, sizes = cut_batch([tf.range(rows)], count, adds_up, "float32", rows_each)
    return [part[0].numpy() for part in parts], [float(w) for w in weights], [int(size) for size in sizes]


@pytest.mark.parametrize(
    ("rows", "rows_each", "sizes", "lengths"),
    [
        (32, 8, [8, 8, 8, 8], [8, 8, 8, 8]),
        (20, 8, [8, 8, 4, 0], [8, 8, 4, 8]),
        (16, 8, [8, 8, 0, 0], [8, 8, 8, 8]),
        (5, 8, [5, 0, 0, 0], [5, 5, 5, 5]),
        (40, 8, [10, 10, 10, 10], [10, 10, 10, 10]),  # more than planned
        (20, 0, [5, 5, 5, 5], [5, 5, 5, 5]),
        (10, 0, [3, 3, 2, 2], [3, 3, 2, 2]),
        (2, 0, [1, 1, 0, 0], [1, 1, 1, 1]),
    ],
)
def test_sizes(rows: int, rows_each: int, sizes: list[int], lengths: list[int]) -> None:
    parts, weights, found = cut(rows, 4, rows_each)
    assert found == sizes
    assert [len(part) for part in parts] == lengths
    assert weights == pytest.approx([size / rows for size in sizes])


def test_parts_without_rows_do_not_count_where_losses_add_up() -> None:
    assert cut(20, 4, 8, adds_up=True)[1] == [1.0, 1.0, 1.0, 0.0]


@given(st.integers(1, 70), st.integers(1, 8), st.integers(0, 9))
def test_every_row_is_in_one_part(rows: int, count: int, rows_each: int) -> None:
    parts, weights, sizes = cut(rows, count, rows_each)
    kept = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    np.testing.assert_array_equal(np.concatenate(kept), np.arange(rows))
    assert sum(weights) == pytest.approx(1.0)
    assert all(len(part) >= 1 for part in parts)
    assert len({len(part) for part in parts}) <= 2
