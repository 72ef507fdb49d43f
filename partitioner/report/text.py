"""The text report of a plan: one screen that says what matters, or in full with `verbose`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import format_count, format_seconds, plural
from partitioner.report.assumptions import assumption_sections, assumptions
from partitioner.report.bottleneck import bottleneck_sentences
from partitioner.report.checks import brief_verification, verification_lines
from partitioner.report.facts import gaps_in_words, solver_in_words
from partitioner.report.layout import (
    LABEL_WIDTH,
    MARGIN,
    Fact,
    Section,
    Spell,
    as_text,
    cut,
    drawn,
    labelled,
    lines,
    table,
)
from partitioner.report.memory_tables import all_memory_section, limits_section
from partitioner.report.microbatches import is_staged
from partitioner.report.stages import all_stages_section, stages_section
from partitioner.report.step_time import all_step_times_section, candidates_section, step_time_section
from partitioner.report.timeline import timeline_section
from partitioner.report.verdict import headline, reasons, short_names
from partitioner.report.what_if import what_if_sections, what_if_sentences
from partitioner.spelling import argument, as_python

_MAX_REASONS = 2
_MAX_NOTE_LINES = 2
_MAX_FILE_LINES = 3


def render(
    plan: PlanDocument,
    files: Sequence[str | Path] = (),
    *,
    verbose: bool = False,
    spell: Spell = as_python,
    width: int = 100,
    color: bool = False,
) -> str:
    """The report of a plan as text without trailing spaces; equal plans give equal text.

    Args:
        plan: The plan.
        files: Paths just written, listed at the end.
        verbose: Whether to show everything; otherwise at most 60 lines, with equal or less important rows merged.
        spell: How arguments are named: `as_python` or `as_flags`.
        width: Columns of the terminal; longer cells wrap, or are cut where the report is to fit one screen.
        color: Whether to style the text with ANSI escapes.
    """
    parts = _in_full(plan, files, spell, width) if verbose else _on_one_screen(plan, files, spell, width)
    return as_text(parts, width=width, color=color)


def _on_one_screen(
    plan: PlanDocument, files: Sequence[str | Path], spell: Spell, width: int
) -> Iterable[RenderableType]:
    room = width - MARGIN
    title = f"{plan.model.name} ({plan.model.source})"
    yield Group(Text(title, style="bold", no_wrap=True, overflow="ellipsis"))
    for line in cut(_about_model(plan), width=room, max_lines=2):
        yield Text(f"  {line}")
    sentences = cut(headline(plan), width=room, max_lines=2)
    for reason in reasons(plan)[:_MAX_REASONS]:
        sentences += cut(spell(reason), width=room, max_lines=1)
    yield drawn(Section(title="strategy", body=lines(sentences)))
    yield drawn(stages_section(plan))
    yield drawn(step_time_section(plan))
    yield drawn(limits_section(plan))
    yield labelled(_facts(plan, files, spell, width), width=width)


def _facts(plan: PlanDocument, files: Sequence[str | Path], spell: Spell, width: int) -> Iterable[Fact]:
    """The short facts: bound, bottleneck, assumptions, verification, each with its maximum of lines."""
    yield Fact(label="solver", sentences=_bound(plan), max_lines=2)
    yield Fact(label="bottleneck", sentences=bottleneck_sentences(plan), max_lines=3)
    if plan.what_if:
        changes = tuple(map(spell, what_if_sentences(plan, count=3)))
        yield Fact(label="what if", sentences=changes, max_lines=3)
    yield Fact(label="assumptions", sentences=assumptions(plan, spell), max_lines=5)
    if plan.verification is None:
        yield Fact(label="verification", sentences=(_not_verified(spell),), max_lines=1)
    else:
        sentences = brief_verification(plan.verification, training=plan.model.training)
        yield Fact(label="verification", sentences=sentences, max_lines=3, style=_verified_style(plan))
    if plan.notes:
        notes = _first_notes([spell(note) for note in plan.notes], width)
        yield Fact(label="notes", sentences=notes, max_lines=_MAX_NOTE_LINES + 1)
    if files:
        paths = tuple(map(str, files))
        listed = paths if len(paths) <= _MAX_FILE_LINES else (", ".join(paths),)
        yield Fact(label="files", sentences=listed, max_lines=_MAX_FILE_LINES)


def _first_notes(notes: Sequence[str], width: int) -> tuple[str, ...]:
    """The first notes, as far as they fit two lines, and how many more there are."""
    room = width - MARGIN - LABEL_WIDTH
    shown, num_lines = [notes[0]], len(cut(notes[0], width=room, max_lines=_MAX_NOTE_LINES))
    for note in notes[1:]:
        num_lines += len(cut(note, width=room, max_lines=_MAX_NOTE_LINES + 1))
        if num_lines > _MAX_NOTE_LINES:
            break
        shown.append(note)
    more = len(notes) - len(shown)
    return *shown, *([f"the verbose report has {plural(more, 'more note')}"] if more else [])


def _in_full(plan: PlanDocument, files: Sequence[str | Path], spell: Spell, width: int) -> Iterable[RenderableType]:
    yield Text(f"{plan.model.name} ({plan.model.source})", style="bold")
    yield Text(f"  {_about_model(plan)}")
    for section in _sections(plan, files, spell, width):
        yield drawn(section)


def _sections(plan: PlanDocument, files: Sequence[str | Path], spell: Spell, width: int) -> Iterable[Section]:
    yield Section(title="strategy", body=lines([headline(plan), *map(spell, reasons(plan))]))
    yield all_stages_section(plan)
    yield all_step_times_section(plan)
    if is_staged(plan):
        if plan.considered:
            yield candidates_section(plan)
        if (timeline := timeline_section(plan, width=width)) is not None:
            yield timeline
    yield limits_section(plan)
    if plan.memory:
        yield all_memory_section(plan, width=width)
    yield Section(title="solver", body=lines([*_bound(plan), *_family(plan)]))
    yield Section(title="bottleneck", body=lines(bottleneck_sentences(plan)))
    yield from what_if_sections(plan)
    yield from assumption_sections(plan, spell)
    yield Section(title="verification", body=_verification(plan, spell))
    if plan.notes:
        yield Section(title="notes", body=lines([f"- {spell(note)}" for note in plan.notes]))
    if files:
        yield Section(title="files", body=lines([str(path) for path in files]))


def _about_model(plan: PlanDocument) -> str:
    model = plan.model
    facts = [
        plural(model.num_ops, "op"),
        f"{format_count(model.num_parameters)} parameters",
        f"batch size {model.batch_size:,}",
        "training" if model.training else "inference",
        f"devices {short_names([device.name for device in plan.devices])}",
    ]
    return ", ".join(facts)


def _bound(plan: PlanDocument) -> tuple[str, str]:
    solver = plan.solver
    bound = f"lower bound {format_seconds(solver.lower_bound)}: under these costs no placement is faster"
    if solver.family_gap is not None:
        bound = f"lower bound {format_seconds(solver.lower_bound)}: no placement is faster"
    return (
        solver_in_words(solver),
        f"{bound}; {gaps_in_words(solver)}",
    )


def _family(plan: PlanDocument) -> Iterator[str]:
    solver = plan.solver
    if solver.family_lower_bound is not None:
        yield f"lower bound of the family {format_seconds(solver.family_lower_bound)}: {solver.family}"


def _not_verified(spell: Spell) -> str:
    return f"not run; {spell(argument('verify'))} runs the placed model beside the unplaced one"


def _verified_style(plan: PlanDocument) -> str:
    checked = plan.verification
    return "red" if checked and (checked.misplaced_ops or not checked.passed) else "green"


def _verification(plan: PlanDocument, spell: Spell) -> RenderableType:
    if plan.verification is None:
        return lines([_not_verified(spell)])
    summary, rows = verification_lines(plan.verification, training=plan.model.training)
    differences = table("largest difference", ">absolute", ">relative")
    for row in rows:
        differences.add_row(*map(Text, row))
    return Group(Text(summary[0], style=_verified_style(plan)), *map(Text, summary[1:]), differences)
