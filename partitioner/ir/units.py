"""Numbers as people read them: a short figure and its unit."""

from __future__ import annotations

import math

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T")
_SECONDS = ("ns", "us", "ms", "s")


def format_bytes(size_bytes: float) -> str:
    """`512 B`, `1.5 KiB`, `23.5 MiB`, `120 GiB`: binary units (IEC 80000-13), one decimal below 100."""
    figure, unit = _bytes_parts(size_bytes)
    return f"{figure} {unit}"


def format_bytes_of(used_bytes: float, total_bytes: float) -> str:
    """`1.2 / 8.0 GiB`; both units when they differ: `120 MiB / 8.0 GiB`."""
    used, used_unit = _bytes_parts(used_bytes)
    total, unit = _bytes_parts(total_bytes)
    return f"{used} / {total} {unit}" if used_unit == unit else f"{used} {used_unit} / {total} {unit}"


def format_bandwidth(bytes_per_second: float) -> str:
    """`450 GB/s`, decimal as in datasheets; `no copy` where bytes stay where they are."""
    if bytes_per_second >= 1e15:
        return "no copy"
    gigabytes = bytes_per_second / 1e9
    return f"{gigabytes:,.0f} GB/s" if gigabytes >= 1000 else f"{gigabytes:.4g} GB/s"


def format_seconds(seconds: float) -> str:
    """`250 ns`, `23.5 us`, `1.83 ms`, `12.0 s`: three significant digits."""
    if seconds == 0:
        return "0 s"
    value = seconds * 1e9
    for unit in _SECONDS[:-1]:
        if value < 999.5:  # from here on three digits would round up to the next unit
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} {_SECONDS[-1]}"


def format_count(count: int) -> str:
    """`812`, `23.5 k`, `1.2 M`, `6.7 G`: decimal steps, one decimal."""
    if count < 1000:
        return str(count)
    value, step = count / 1000, 1
    while step < len(_COUNTS) - 1 and value >= 999.95:  # 999.95 would print as 1000.0
        value, step = value / 1000, step + 1
    return f"{value:.1f} {_COUNTS[step]}"


def format_percent(fraction: float) -> str:
    """`0 %`, `0.04 %`, `1.6 %`, `31 %` for fractions such as 0.31."""
    percent = 100 * fraction
    if percent == 0:
        return "0 %"
    return f"{percent:.2f} %" if percent < 1 else f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def format_ratio(seconds: float, reference_seconds: float) -> str:
    """How `seconds` compares with the reference: `1.31x slower`, `1.10x faster`, `same`."""
    if min(seconds, reference_seconds) <= 0:
        return "same" if seconds == reference_seconds else "-"
    ratio = seconds / reference_seconds
    if ratio in (0, math.inf):
        return "-"
    slower = ratio >= 1
    text = f"{ratio if slower else 1 / ratio:.2f}x"
    return "same" if text == "1.00x" else f"{text} {'slower' if slower else 'faster'}"


def plural(count: int, noun: str) -> str:
    """`1 op`, `2 ops`, `1,234 ops`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _bytes_parts(size_bytes: float) -> tuple[str, str]:
    value, step = float(size_bytes), 0
    while step < len(_BYTES) - 1 and value >= 1023.5:  # 1023.5 would print as 1024
        value, step = value / 1024, step + 1
    return (f"{value:.0f}" if step == 0 or value >= 99.95 else f"{value:.1f}"), _BYTES[step]


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
