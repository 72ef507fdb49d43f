"""Command lines: what running one gives, the model files of tests/cli_models and options for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Run = Callable[..., tuple[int, str, str]]
"""Runs a command line: exit code, stdout, stderr."""

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).parent / "cli_models"
SMALL = str(MODELS / "small.py")
TWO = ("--devices", "CPU:0,CPU:1")
