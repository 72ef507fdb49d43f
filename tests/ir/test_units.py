"""Numbers as people read them; every expected text is worked out by hand."""

from __future__ import annotations

import pytest

from partitioner.ir.units import (
    format_bandwidth,
    format_bytes,
    format_bytes_of,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    plural,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (99 * 1024, "99.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),  # not "1024 KiB"
        (23 * 2**20 + 2**19, "23.5 MiB"),
        (8 * GIB, "8.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (5000 * 2**50, "5000 PiB"),
    ],
)
def test_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("bytes_per_second", "text"),
    [(31.5e9, "31.5 GB/s"), (450e9, "450 GB/s"), (1e12, "1,000 GB/s"), (1e13, "10,000 GB/s"), (1e15, "no copy")],
)
def test_bandwidth_has_no_exponent(bytes_per_second: float, text: str) -> None:
    """Bug: copies between CPU devices, which are free, were said to be at 1e+04 GB/s."""
    assert format_bandwidth(bytes_per_second) == text


def test_bytes_of_a_total_share_the_unit_when_they_can() -> None:
    assert format_bytes_of(GIB * 6 // 5, 8 * GIB) == "1.2 / 8.0 GiB"
    assert format_bytes_of(120 << 20, 8 * GIB) == "120 MiB / 8.0 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-10, "0.50 ns"),
        (250e-9, "250 ns"),
        (23.46e-6, "23.5 us"),
        (999.6e-6, "1.00 ms"),  # not "1000 us"
        (1.834e-3, "1.83 ms"),
        (9.996e-3, "10.0 ms"),  # not "10.00 ms"
        (0.118, "118 ms"),
        (2.4, "2.40 s"),
        (99.96, "100 s"),
        (4000.0, "4000 s"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 k"),
        (25_600, "25.6 k"),
        (999_960, "1.0 M"),  # not "1000.0 k"
        (23_534_592, "23.5 M"),
        (6_700_000_000, "6.7 G"),
        (2 * 10**15, "2000.0 T"),
    ],
)
def test_count(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0 %"), (0.0004, "0.04 %"), (0.016, "1.6 %"), (0.31, "31 %"), (1.5, "150 %")]
)
def test_percent(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text


@pytest.mark.parametrize(
    ("seconds", "reference_seconds", "text"),
    [
        (1.31, 1.0, "1.31x slower"),
        (1.0, 1.25, "1.25x faster"),
        (1.0, 1.0, "same"),
        (1.0, 1.004, "same"),
        (0.0, 0.0, "same"),
        (1.0, 0.0, "-"),
        (5e-324, 1e10, "-"),  # the ratio is no number that floats have
        (1e300, 5e-324, "-"),
    ],
)
def test_ratio(seconds: float, reference_seconds: float, text: str) -> None:
    assert format_ratio(seconds, reference_seconds) == text


def test_plural() -> None:
    assert [plural(0, "op"), plural(1, "op"), plural(1234, "op")] == ["0 ops", "1 op", "1,234 ops"]
