"""What a report says of changes of the machine: what is minimised with each, and what that gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from partitioner.ir.plan import WhatIf
from partitioner.ir.units import format_bytes, format_percent, format_seconds


def what_if_rows(changes: Iterable[WhatIf]) -> list[tuple[str, str, str]]:
    """Change, what is minimised then, and what that gains."""
    return [(one.change, _after(one), _gain(one)) for one in changes]


def _after(one: WhatIf) -> str:
    formats: dict[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes}
    if one.after is None:
        return ""
    return formats[one.unit](one.after) if one.unit in formats else f"{one.after:.6g} {one.unit}"


def _gain(one: WhatIf) -> str:
    if one.after is None:
        return f"not planned: {one.reason}"
    gain = 1 - one.after / one.before if one.before else 0.0
    return f"{format_percent(gain)} less" if gain > 1e-9 else "nothing"
