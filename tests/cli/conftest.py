"""A command line, run in this process in an empty directory, and a cost graph there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from partitioner import api
from partitioner.cli import main
from tests.commands import Run


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


@pytest.fixture
def verification_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is verified has an op on the wrong device."""
    honest = api.verify

    def failing(*arguments: Any) -> Any:
        return replace(honest(*arguments), passed=False, misplaced_ops=("x: on CPU:0",))

    monkeypatch.setattr(api, "verify", failing)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    """Write a cost graph, some of it changed: a chain of four nodes, 3 ms each, 1 ms to move a value; two accelerators
    of 30 bytes and a CPU ten times slower. Returns its name."""
    nodes = [{"id": i, "name": f"op{i}", "cpuLatency": 30.0, "fpgaLatency": 3.0, "size": 10.0} for i in range(1, 5)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 1.0, "size": 8.0} for i in range(1, 4)]
    workload = {"maxSizePerFPGA": 30.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}

    def file(**changed: Any) -> str:
        (tmp_path / "work.json").write_text(json.dumps({**workload, **changed}))
        return "work.json"

    return file
