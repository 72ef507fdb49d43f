"""Names of devices, and many of them in few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.devices import DeviceName, equal_hosts, parse_devices, short_ranges


def ranges(text: str) -> list[str]:
    return short_ranges(name.canonical for name in parse_devices(text))


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ("GPU:0", ["GPU:0"]),
        ("GPU:0-511", ["GPU:0-511"]),
        ("GPU:0-2,GPU:5,CPU:0", ["GPU:0-2", "GPU:5", "CPU:0"]),
        ("/job:worker/task:0/GPU:0-7,/job:worker/task:1/GPU:0-7", ["/job:worker/task:0-1/GPU:0-7"]),
        (
            "GPU:0,/job:worker/task:0/GPU:0-7,/job:worker/task:1/GPU:0-6",
            ["GPU:0", "/job:worker/task:0/GPU:0-7", "/job:worker/task:1/GPU:0-6"],
        ),
        ("/job:localhost/task:1/GPU:0", ["/job:localhost/task:1/GPU:0"]),
    ],
)
def test_ranges(names: str, short: list[str]) -> None:
    assert ranges(names) == short


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_name_every_device_once(indices: set[int]) -> None:
    names = [DeviceName(type="GPU", index=index) for index in sorted(indices)]
    short = short_ranges(name.canonical for name in names)
    assert parse_devices(short) == names


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("GPU:0-3", [[0, 1, 2, 3]]),
        ("/job:worker/task:0/GPU:0-1,/job:worker/task:1/GPU:0-1", [[0, 1], [2, 3]]),
        ("GPU:0,/job:worker/task:0/GPU:0,GPU:1,/job:worker/task:0/GPU:1", [[0, 2], [1, 3]]),
        ("GPU:0-1,/job:worker/task:0/GPU:0", [[0, 1, 2]]),
        ("/job:worker/task:0/GPU:0,/job:worker/task:1/GPU:0", [[0, 1]]),
    ],
)
def test_processes_with_as_many_devices_each(names: str, hosts: list[list[int]]) -> None:
    assert equal_hosts([name.canonical for name in parse_devices(names)]) == hosts
