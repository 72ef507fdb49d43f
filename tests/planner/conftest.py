"""What tests of the planner's processes share."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest


@pytest.fixture
def child_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put another program in the solver's place: real processes, a child that misbehaves."""

    def install(source: str) -> None:
        script = tmp_path / "child"
        script.write_text(f"#!{sys.executable}\n{textwrap.dedent(source)}")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return install
