"""Changes of the machine in a report: the objective after each change, and its gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text

from partitioner.ir.plan import PlanDocument, WhatIf
from partitioner.ir.units import format_bytes, format_percent, format_seconds
from partitioner.report.layout import Section, table


def what_if_rows(changes: Iterable[WhatIf]) -> list[tuple[str, str, str]]:
    """Change, objective after it, and gain."""
    return [(change.change, _after(change), _gain(change)) for change in changes]


def what_if_sentences(plan: PlanDocument, *, count: int) -> tuple[str, ...]:
    """A sentence for each change, at most `count`; the last sentence counts those left out."""
    sentences = [_sentence(change) for change in plan.what_if]
    if len(sentences) <= count:
        return tuple(sentences)
    return *sentences[: count - 1], f"{len(sentences) - count + 1} more changes in the verbose report"


def what_if_sections(plan: PlanDocument) -> Iterable[Section]:
    """All changes as a table; nothing where there are no changes."""
    if plan.what_if:
        what = "largest peak" if plan.what_if[0].unit == "bytes" else "step"
        body = table("what if", f">{what}", "gain")
        for row in what_if_rows(plan.what_if):
            body.add_row(*map(Text, row))
        yield Section(title="what if (estimated)", body=body)


def _sentence(change: WhatIf) -> str:
    if change.after is None:
        return f"{change.change}: {_gain(change)}"
    what = "largest peak" if change.unit == "bytes" else "step"
    gain = _gain(change)
    return f"{change.change}: {what} {_after(change)}, {'no gain' if gain == 'nothing' else gain}"


def _after(change: WhatIf) -> str:
    formats: dict[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes}
    if change.after is None:
        return ""
    return formats[change.unit](change.after) if change.unit in formats else f"{change.after:.6g} {change.unit}"


def _gain(change: WhatIf) -> str:
    if change.after is None:
        return f"not planned: {change.reason}"
    gain = 1 - change.after / change.before if change.before else 0.0
    return f"{format_percent(gain)} less" if gain > 1e-9 else "nothing"
