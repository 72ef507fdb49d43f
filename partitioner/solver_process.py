"""Run a module of this package in a process of its own: its command, environment, and how it ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def child_command(module: str) -> list[str]:
    """The command that runs a module."""
    # -P: the working directory must not shadow a module of this package.
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """This process's environment, with its search path for modules."""
    search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return os.environ | {"PYTHONPATH": search_path}


def ending(code: int, stderr: bytes) -> str:
    """How a process ended unexpectedly, in words that follow its name."""
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"failed (exit code {code}): {lines[-1] if lines else 'it said nothing'}"
