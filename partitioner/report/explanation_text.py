"""The text of an explanation: what limits the step, where its time goes, simpler plans, and the next moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from partitioner.ir.plan import WhatIf
from partitioner.ir.units import format_bytes, format_percent, format_seconds
from partitioner.report.limit_kinds import Limit, LimitKind
from partitioner.report.what_if import what_if_rows

if TYPE_CHECKING:
    from partitioner.report.explanation import Explanation, Move

_WIDTH = 100


def explanation_text(explanation: Explanation) -> str:
    """The text without trailing spaces; equal explanations give equal text."""
    parts = [
        [explanation.model, *_wrapped(explanation.plan)],
        _section("what limits the step", _limit_lines(explanation.limits[:1])),
        _section("where the step goes", _share_lines(explanation.limits)),
        _section("simpler plans", (line for sentence in explanation.simpler for line in _wrapped(sentence))),
        _section("next moves" if explanation.not_planned else "next moves (each planned)", _move_lines(explanation)),
        _section("planned too", (line for row in explanation.others for line in _wrapped(_other(row)))),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return [title, *body] if body else []


def _wrapped(sentence: str, indent: str = "  ") -> list[str]:
    return wrap(
        sentence,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _limit_lines(limits: Sequence[Limit]) -> Iterator[str]:
    for limit in limits:
        yield from _wrapped(limit.sentence)
        if limit.layers:
            yield from _wrapped(f"layers: {', '.join(limit.layers)}")
        for tensor in limit.tensors:
            yield from _wrapped(f"tensor {tensor}")


def _share_lines(limits: Sequence[Limit]) -> Iterator[str]:
    width = max((len(limit.kind) for limit in limits), default=0)
    for limit in sorted(limits, key=lambda limit: -limit.share):
        yield f"  {limit.kind:{width}}  {format_percent(limit.share):>6}  {_responsible(limit)}".rstrip()


def _responsible(limit: Limit) -> str:
    """`GPU:0 (conv2d, dense)`, cut where the devices are many."""
    devices = ", ".join(limit.devices[:4]) + (", ..." if len(limit.devices) > 4 else "")
    layers = ", ".join(limit.layers)
    text = f"{devices} ({layers})" if layers else devices
    if limit.kind is LimitKind.MEMORY:
        text = f"of the others; {text}"
    return text if len(text) <= 76 else f"{text[:73]}..."


def _move_lines(explanation: Explanation) -> Iterator[str]:
    if explanation.not_planned:
        yield from _wrapped(explanation.not_planned)
        if explanation.command:
            yield f"     {explanation.command}"
    elif not explanation.moves:
        yield "  none of the changes that were planned gains 1 %"
    for number, move in enumerate(explanation.moves, 1):
        yield from _wrapped(f"{number}. {move.change}: {_figure(move)}, {format_percent(move.gain)} less")
        yield f"     {move.command}"


def _figure(move: Move) -> str:
    return f"largest peak {format_bytes(move.after)}" if move.unit == "bytes" else f"step {format_seconds(move.after)}"


def _other(row: WhatIf) -> str:
    ((change, after, gain),) = what_if_rows([row])
    return (
        f"{change}: {gain}" if row.after is None else f"{change}: {after}, {'no gain' if gain == 'nothing' else gain}"
    )
