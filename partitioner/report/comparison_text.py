"""The comparison of two plans as text: one screen, or every row with `verbose`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.ir.devices import short_ranges
from partitioner.ir.plan import Stage
from partitioner.ir.units import format_bytes, format_bytes_of, format_percent, format_ratio, format_seconds
from partitioner.report.boxes import layer_runs
from partitioner.report.comparison import Change, Comparison, Figure, PeakMemory
from partitioner.report.layout import MARGIN, Section, as_text, cut, drawn, name, table

_MAX_LINES = 60
_LINES_OF_TABLE = 5
"""An empty line, the title, the head, the line below it, and how many rows are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A table: its title, its columns as `layout.table` takes them, and the cells of each row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def render_comparison(
    comparison: Comparison,
    names: tuple[str, str] = ("", ""),
    *,
    verbose: bool = False,
    width: int = 100,
    color: bool = False,
) -> str:
    """The comparison as text without trailing spaces; equal comparisons give equal text.

    Args:
        comparison: What differs.
        names: The files of the two plans, shown with their models.
        verbose: Whether to show every row; otherwise at most 60 lines.
        width: Columns of the page; longer cells are cut, or wrap with `verbose`.
        color: Whether to style the text with ANSI escapes.
    """
    parts: list[RenderableType] = list(_head(comparison, names, width))
    if not comparison.is_same_plan:
        tables = [rows for rows in _tables(comparison) if rows.rows]
        room = _MAX_LINES - sum(len(str(part).splitlines()) for part in parts) - _LINES_OF_TABLE * len(tables)
        shown = _shares([len(rows.rows) for rows in tables], room)
        for rows, count in zip(tables, shown, strict=True):
            parts.append(drawn(_section(rows, len(rows.rows) if verbose else count, one_line=not verbose)))
    return as_text(parts, width=width, color=color)


def _head(comparison: Comparison, names: tuple[str, str], width: int) -> Iterator[Text]:
    for letter, model, file in zip("AB", (comparison.before, comparison.after), names, strict=True):
        line = Text(f"{letter}  ", style="bold", no_wrap=True, overflow="ellipsis")
        yield line.append(f"{model.name} ({model.source})" + (f": {file}" if file else ""), style="not bold")
    sentence, style = "", ""
    if comparison.is_same_plan:
        sentence = "the plans are the same"
    elif not comparison.is_same_model:
        fingerprints = f"fingerprints {comparison.before.fingerprint} and {comparison.after.fingerprint}"
        sentence = f"these are plans of different models ({fingerprints}): below is what can be compared all the same"
        style = "yellow"
    for line in cut(sentence, width=width - MARGIN, max_lines=2):
        yield Text(f"  {line}", style=style)


def _tables(comparison: Comparison) -> Iterator[_Rows]:
    """The tables, those without rows included."""
    yield _Rows(title="the plan, where it differs", columns=("", "A", "B"), rows=_rows_of(comparison.settings))
    yield _Rows(
        title="estimates",
        columns=("", ">A", ">B", "B against A"),
        rows=tuple(map(_figure, comparison.figures)),
    )
    yield _Rows(
        title="memory (estimated peak against the limit)",
        columns=("device", ">A", ">B", ">B uses", "B against A"),
        rows=tuple(_peaks(comparison)),
    )
    yield _Rows(
        title="stages that differ (estimated)",
        columns=("stage", "A", ">compute", ">sends", "B", ">compute", ">sends"),
        rows=tuple(_stages(comparison)),
    )
    yield _Rows(
        title=f"layers on other devices ({comparison.num_moved_ops:,} of {comparison.num_common_ops:,} ops moved)",
        columns=("layers", "A", "B"),
        rows=tuple(_moves(comparison)),
    )
    yield _Rows(title="assumptions that differ", columns=("", "A", "B"), rows=_rows_of(comparison.assumptions))
    yield _Rows(title="verification", columns=("", "A", "B"), rows=_rows_of(comparison.verification))


def _section(rows: _Rows, count: int, *, one_line: bool) -> Section:
    body = table(*rows.columns, one_line=one_line)
    for row in rows.rows[:count]:
        body.add_row(*(name(cell, one_line=one_line) for cell in row))
    more = len(rows.rows) - count
    left_out = [Text(f"{more:,} more in the verbose comparison")] if more else []
    return Section(title=rows.title, body=Group(body, *left_out))


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """How many rows each table shows: as many as there are, but the longest tables give way to the others."""
    shown = list(wanted)
    while sum(shown) > room and max(shown) > 1:
        shown[shown.index(max(shown))] -= 1
    return shown


def _rows_of(changes: Sequence[Change]) -> tuple[tuple[str, ...], ...]:
    """A row for each change; those from and to the same share one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        alike.setdefault((change.before, change.after), []).append(change.name)
    return tuple((", ".join(names), before or "-", after or "-") for (before, after), names in alike.items())


def _figure(figure: Figure) -> tuple[str, ...]:
    write = {"s": format_seconds, "bytes": format_bytes, "share": format_percent}.get(figure.unit, _plain)
    return figure.name, write(figure.before), write(figure.after), _against(figure)


def _against(figure: Figure) -> str:
    if not figure.difference:
        return "same"
    if figure.unit == "s" and figure.name == "step":
        return format_ratio(figure.after, figure.before)
    if figure.unit == "share":
        return f"{100 * figure.difference:+.1f} points"
    return _relative(figure.before, figure.after)


def _relative(before: float, after: float) -> str:
    """`+12 %`, `-3.4 %`; a dash where there was nothing."""
    if before <= 0:
        return "-"
    share = after / before - 1
    return f"{'-' if share < 0 else '+'}{format_percent(abs(share))}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peaks(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """A row for each device; those with the same figures share one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for peak in comparison.memory:
        alike.setdefault(_peak(peak), []).append(peak.device)
    for cells, devices in alike.items():
        yield ", ".join(short_ranges(devices)), *cells


def _peak(peak: PeakMemory) -> tuple[str, ...]:
    sides = ((peak.before_bytes, peak.before_limit_bytes), (peak.after_bytes, peak.after_limit_bytes))
    cells = ["-" if used is None or limit is None else format_bytes_of(used, limit) for used, limit in sides]
    against = _relative(peak.before_bytes or 0, peak.after_bytes or 0) if peak.difference_bytes else "same"
    return *cells, "-" if peak.after_bytes is None else format_percent(peak.after_share), against


def _stages(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """A row for each stage that differs, all replicas together."""
    peers: dict[int, tuple[list[Stage], list[Stage]]] = {}
    for change in comparison.stages:
        sides = peers.setdefault(change.index, ([], []))
        for stage, side in zip((change.before, change.after), sides, strict=True):
            if stage is not None:
                side.append(stage)
    for index, (before, after) in sorted(peers.items()):
        yield str(index), *_side(before), *_side(after)


def _side(stages: Sequence[Stage]) -> tuple[str, str, str]:
    if not stages:
        return "-", "-", "-"
    devices = ", ".join(short_ranges(dict.fromkeys(stage.device for stage in stages)))
    longest, most = max(stage.compute_seconds for stage in stages), max(stage.send_bytes for stage in stages)
    return devices, format_seconds(longest), format_bytes(most)


def _moves(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """A row for the layers that moved from and to the same devices."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for moved in comparison.moved_layers:
        alike.setdefault((moved.before, moved.after), []).append(moved.layer)
    for (before, after), layers in alike.items():
        sides = [", ".join(short_ranges(devices)) or "not there" for devices in (before, after)]
        yield layer_runs(layers, comparison.layers, max_runs=3, max_names=3), *sides
