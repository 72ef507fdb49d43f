"""Layout of a report: titles, plain tables, and lines that are cut to fit one screen."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MARGIN = 2
LABEL_WIDTH = 14
_MIN_WIDTH = 20
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGT]iB|B)(?!\w))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title and the text under it."""

    title: str
    body: RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Sentences beside a label, each on lines of its own.

    Attributes:
        label: Their topic: `solver`.
        sentences: The sentences, most important first.
        max_lines: Of the page, for all of them together.
        style: Of the first sentence, as rich has it.
    """

    label: str
    sentences: tuple[str, ...]
    max_lines: int
    style: str = ""


def as_text(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """The parts one below the other, without trailing spaces."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        height=25,  # given with the width, so that the size of no terminal is asked for
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,  # names such as `[bold]` stay as they are
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def drawn(section: Section) -> RenderableType:
    """A section below an empty line, its body indented."""
    return Group(Text(f"\n{section.title}", style="bold"), Padding(section.body, (0, 0, 0, MARGIN)))


def lines(sentences: Iterable[str], style: str = "") -> RenderableType:
    """Sentences, each on as many lines as it needs."""
    return Group(*(Text(sentence, style=style) for sentence in sentences))


def cut(sentence: str, *, width: int, max_lines: int) -> list[str]:
    """A sentence on at most `max_lines` lines; three dots replace text that does not fit."""
    room = max(width, _MIN_WIDTH)
    joined = _BEFORE_UNIT.sub("\u00a0", sentence)  # a figure and its unit stay together
    wrapped = textwrap.wrap(joined, room, max_lines=max_lines, placeholder=" ...", break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in wrapped]


def cut_all(sentences: Sequence[str], *, width: int, max_lines: int) -> list[str]:
    """Sentences on at most `max_lines` lines together; later sentences get the lines that earlier sentences leave."""
    shown: list[str] = []
    for index, sentence in enumerate(sentences):
        left = max_lines - len(shown) - (len(sentences) - index - 1)  # each of the others has a line
        if len(shown) < max_lines:
            shown += cut(sentence, width=width, max_lines=max(left, 1))
    return shown


def labelled(facts: Iterable[Fact], *, width: int) -> RenderableType:
    """Facts one below the other, their labels in a column on the left."""
    rows = []
    for fact in facts:
        texts = cut_all(fact.sentences, width=width - MARGIN - LABEL_WIDTH, max_lines=fact.max_lines)
        for index, text in enumerate(texts):
            label = Text(f"{'' if index else fact.label:{LABEL_WIDTH}}", style="bold")
            rows.append(label.append(text, style=("" if index else fact.style) or "not bold"))
    return Padding(Group(*rows), (1, 0, 0, MARGIN))


def table(*columns: str, one_line: bool = False) -> Table:
    """A table with a line under the head.

    Args:
        columns: Their titles. `>` aligns a column to the right.
        one_line: Whether every row is one line: long names are cut rather than wrapped, figures last.
    """
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="none")
    for column in columns:
        is_figure = column.startswith(">")
        made.add_column(
            column.lstrip(">"),
            justify="right" if is_figure else "left",
            overflow="ellipsis" if one_line else "fold",
            no_wrap=one_line and is_figure,
        )
    return made


def name(text: str, *, one_line: bool = False, style: str = "") -> Text:
    """A cell with a name in it, in a table of rows of one line or of more."""
    if one_line:
        return Text(text, style=style, no_wrap=True, overflow="ellipsis")
    return Text(text, style=style)


def fits(does_fit: bool) -> Text:
    """Whether something fits in memory."""
    return Text("fits") if does_fit else Text("does not fit", style="red")


Spell = Callable[[str], str]
"""Spells the arguments in a text: `as_python` or `as_flags` of `partitioner.spelling`."""
