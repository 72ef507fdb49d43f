"""The predicted timeline as text: a row per device, a column per slice of the step, a symbol per action."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument, PlannedAction
from partitioner.ir.units import format_seconds
from partitioner.report.layout import MARGIN, Section
from partitioner.stages.actions import UPDATE, Action, ActionKind

IDLE = "."
_FORWARDS = "0123456789"
_BACKWARDS = "abcdefghij"
_WEIGHTS = "ABCDEFGHIJ"
_SYMBOLS = {ActionKind.FORWARD: _FORWARDS, ActionKind.BACKWARD: _BACKWARDS, ActionKind.WEIGHTS: _WEIGHTS}
_MAX_COLUMNS = 72
_MIN_COLUMNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Rows of equal length by device, seconds of the whole row, and the meaning of the symbols."""

    rows: tuple[tuple[str, str], ...]
    step_seconds: float
    legend: str


def draw_timeline(plan: PlanDocument, *, num_columns: int) -> Timeline | None:
    """The timeline of a plan in `num_columns` columns; None where the plan has none.

    A column shows the action that takes most of its time, so an action shorter than half a column may not show. Digits
    are forwards, letters backwards and capital letters gradients of weights that are computed later, all by the last
    digit of the microbatch (`a` is 0).

    Raises:
        ValueError: An action is neither like `0F3` nor an update.
    """
    step_seconds = max([plan.predicted.step_seconds, *(action.end_seconds for action in plan.timeline)])
    if not plan.timeline or step_seconds <= 0:
        return None
    column_seconds = step_seconds / num_columns
    order = {device.name: index for index, device in enumerate(plan.devices)}
    devices = sorted({action.device for action in plan.timeline}, key=lambda name: order.get(name, len(order)))
    rows = []
    for device in devices:
        actions = [action for action in plan.timeline if action.device == device]
        rows.append((short_name(device), _row(actions, column_seconds, num_columns)))
    legend = _legend(plan, column_seconds)
    return Timeline(rows=tuple(rows), step_seconds=step_seconds, legend=legend)


def timeline_columns(plan: PlanDocument, width: int) -> int:
    """How many columns a row beside a device's name has in a report of `width` columns."""
    longest = max(len(short_name(device.name)) for device in plan.devices)
    room = width - longest - MARGIN - 2  # two spaces behind the label
    return max(min(room, _MAX_COLUMNS), _MIN_COLUMNS)


def timeline_section(plan: PlanDocument, *, width: int) -> Section | None:
    """The timeline in colours; None where the plan has none."""
    timeline = draw_timeline(plan, num_columns=timeline_columns(plan, width))
    if timeline is None:
        return None
    longest = max(len(device) for device, _ in timeline.rows)
    rows = []
    for device, row in timeline.rows:
        bars = Text(row)
        bars.highlight_regex("[0-9]+", "blue")
        bars.highlight_regex("[a-j]+", "magenta")
        bars.highlight_regex("[A-J]+", "cyan")
        rows.append(Text(f"{device:{longest}}  ").append_text(bars))
    end = f"{format_seconds(timeline.step_seconds):>{len(timeline.rows[0][1]) - 1}}"
    body = Group(*rows, Text(f"{'':{longest}}  0{end}"), Text(timeline.legend))
    of_first = ", of replica 0 as of all" if plan.num_replicas > 1 else ""
    return Section(title=f"timeline (estimated{of_first})", body=body)


def _row(actions: Iterable[PlannedAction], column_seconds: float, num_columns: int) -> str:
    filled: list[dict[str, float]] = [{} for _ in range(num_columns)]
    for action in sorted(actions, key=lambda action: action.start_seconds):
        symbol = _symbol(action.action)
        start, end = action.start_seconds / column_seconds, action.end_seconds / column_seconds
        for column in range(int(start), min(math.ceil(end), num_columns)):
            share = min(end, column + 1) - max(start, column)
            filled[column][symbol] = filled[column].get(symbol, 0.0) + share
    return "".join(map(_most, filled))


def _most(shares: dict[str, float]) -> str:
    """The symbol with the largest share of a column; of equal shares, the earlier symbol."""
    rounded = {symbol: round(share, 6) for symbol, share in shares.items()}
    rounded[IDLE] = round(1 - sum(shares.values()), 6)
    return max(rounded, key=lambda symbol: rounded[symbol])


def _symbol(text: str) -> str:
    if text == UPDATE:
        return UPDATE
    action = Action.parse(text)
    symbols = _SYMBOLS[action.kind]
    return symbols[action.microbatch % len(symbols)]


def _legend(plan: PlanDocument, column_seconds: float) -> str:
    symbols = {_symbol(action.action) for action in plan.timeline}
    parts = []
    # A single stage runs forward and backward as one action.
    is_whole = plan.model.training and symbols.isdisjoint(_BACKWARDS)
    names = ("forward and backward" if is_whole else "forward", "backward", "gradients of weights")
    for name, letters in zip(names, _SYMBOLS.values(), strict=True):
        used = [symbol for symbol in letters if symbol in symbols]
        if used:
            parts.append(f"{used[0]}-{used[-1]} {name}" if len(used) > 1 else f"{used[0]} {name}")
    if plan.num_microbatches > len(_FORWARDS):
        parts[-1] += " by the microbatch's last digit"
    elif plan.num_microbatches > 1:
        parts[-1] += " by microbatch"
    parts += [f"{UPDATE} update"] if UPDATE in symbols else []
    return f"{', '.join(parts)}, {IDLE} idle; a column is {format_seconds(column_seconds)}"
