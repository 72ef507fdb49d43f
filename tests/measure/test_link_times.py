"""The line through times of transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.measure.link_times import MOST_BYTES_PER_SECOND, fit_line, time_link


@given(st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-8))
def test_a_line_is_found_again(start: float, slope: float) -> None:
    sizes = (4, 1 << 20, 1 << 24)
    found = fit_line(sizes, [start + slope * size for size in sizes])
    assert found == (pytest.approx(start, rel=1e-6), pytest.approx(slope, rel=1e-6))


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_neither_is_ever_negative(seconds: list[float]) -> None:
    assert all(value >= 0 for value in fit_line((4, 1 << 20, 1 << 24), seconds))


def test_two_logical_devices_have_a_link() -> None:
    latency, bandwidth = time_link("CPU:0", "CPU:1")
    assert 0 <= latency < 0.1
    assert 1e6 < bandwidth <= MOST_BYTES_PER_SECOND
