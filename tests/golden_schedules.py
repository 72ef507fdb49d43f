"""The tables of tests/golden/schedules: which action of a schedule a device runs in which slot."""

from __future__ import annotations

import re
from pathlib import Path

from partitioner.stages.schedules import ScheduleKind

SCHEDULES = Path(__file__).parent / "golden" / "schedules"


def golden_schedules() -> list[tuple[ScheduleKind, list[str], int, str]]:
    """Schedule, device of each stage, microbatches, and the drawn table."""
    cases = []
    for kind in ScheduleKind:
        for block in (SCHEDULES / f"{kind}.txt").read_text(encoding="utf-8").strip().split("\n\n"):
            header, _, table = block.partition("\n")
            match = re.fullmatch(r"stages on ([a-z ]+); microbatches (\d+)", header)
            assert match, header
            cases.append((kind, match[1].split(), int(match[2]), table))
    return cases
