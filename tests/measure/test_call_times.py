"""Calls of stage programs that do nothing."""

from __future__ import annotations

import pytest

from partitioner.measure.call_times import time_calls

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(2)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_takes_a_moment(count: int) -> None:
    found = time_calls(DEVICES[:count])
    assert 0 < found.of(2) <= found.of(200) < 0.1
