"""A command line, run in this process in an empty directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import pytest

from partitioner.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in an empty directory: exit code, stdout, stderr, each with what C++ wrote."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        keras.backend.clear_session()
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run
