"""Sizes that depend on the number of rows: their arithmetic agrees with that of numbers, for any number of rows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.capture.batch_axis.sizes import UNKNOWN, Size, is_whole, product

SIZES = st.builds(Size, st.integers(-6, 12), st.integers(0, 2))
ROWS = st.integers(1, 40)
EXACT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (operator.floordiv, operator.floordiv),
    "%": (operator.mod, operator.mod),
    "largest": (Size.largest, max),
    "smallest": (Size.smallest, min),
}


@pytest.mark.parametrize("name", EXACT)
@given(a=SIZES, b=SIZES, rows=ROWS)
def test_what_is_known_holds_for_any_number_of_rows(name: str, a: Size, b: Size, rows: int) -> None:
    symbolic, plain = EXACT[name]
    made = symbolic(a, b)
    if made.is_known:
        assert made.at(rows) == plain(a.at(rows), b.at(rows))


def test_sums_and_parts_of_sizes() -> None:
    rows = Size(1, 1)
    assert rows * Size(7) + Size(3) * rows == Size(10, 1)
    assert rows * Size(12) // Size(4) == Size(3, 1)
    assert (rows * Size(8)) // rows == Size(8)
    assert not (rows + Size(1)).is_known
    assert not (rows // Size(2)).is_known
    assert not is_whole(rows / Size(2))
    assert rows.largest(Size(1)) == rows
    assert product([rows, Size(4), Size(0)]) == Size(0)
    assert not (UNKNOWN * rows).is_known
