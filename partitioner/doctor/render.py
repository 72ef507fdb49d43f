"""A diagnosis as a table for people."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from partitioner.doctor.finding import Diagnosis, Finding, Status
from partitioner.ir.devices import short_name
from partitioner.ir.units import format_bytes, format_seconds, plural
from partitioner.report.layout import as_text, table
from partitioner.spelling import as_flags

_STYLES = {Status.HOLDS: "green", Status.FAILED: "bold red", Status.SKIPPED: "yellow"}


def render(diagnosis: Diagnosis, *, width: int, color: bool, spell: Callable[[str], str] = as_flags) -> str:
    """The findings, predicted and measured figures beside them, and the advice below.

    Args:
        diagnosis: What to show.
        width: Columns of the page.
        color: Whether to use colors.
        spell: Spells the names of arguments.
    """
    findings = table("check", "", "seen", ">step: plan", ">measured", ">peak: plan", ">measured")
    for finding in diagnosis.findings:
        findings.add_row(
            Text(finding.check),
            Text(finding.status.value, style=_STYLES[finding.status]),
            Text(spell(finding.text)),
            *_figures(finding),
        )
    stand_ins = [f"{short_name(a)} for {short_name(n)}" for n, a in diagnosis.devices.items() if a != n]
    parts = [Text(f"devices: {', '.join(map(short_name, diagnosis.devices))}")]
    if stand_ins:
        parts.append(Text(f"standing in: {', '.join(stand_ins)}; times are theirs and not shown", style="yellow"))
    parts += [Text(""), findings]
    advice: dict[str, list[str]] = {}
    for finding in diagnosis.failed:
        if finding.advice:
            advice.setdefault(spell(finding.advice), []).append(finding.check.partition(":")[0])
    parts += [Text(f"{', '.join(checks)}: {text}") for text, checks in advice.items()]
    held = sum(finding.status is Status.HOLDS for finding in diagnosis.findings)
    skipped = sum(finding.status is Status.SKIPPED for finding in diagnosis.findings)
    parts.append(Text(f"{plural(held, 'check')} hold, {len(diagnosis.failed)} failed, {skipped} skipped"))
    return as_text(parts, width=width, color=color)


def _figures(finding: Finding) -> tuple[str, ...]:
    seconds = (finding.predicted_seconds, finding.measured_seconds)
    sizes = (finding.predicted_bytes, finding.measured_bytes)
    return (
        *(format_seconds(value) if value else "-" for value in seconds),
        *(format_bytes(value) if value else "-" for value in sizes),
    )
