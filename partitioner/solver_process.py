"""A module of ours as a process of its own: how it is started, and how it is said to have ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def child_command(module: str) -> list[str]:
    """The command that runs a module."""
    # -P: the directory the user works in must not shadow a module of ours.
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """This process's environment, with the search path that it finds modules on."""
    search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return os.environ | {"PYTHONPATH": search_path}


def ending(code: int, stderr: bytes) -> str:
    """How a process ended that should not have, in words that follow its name."""
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"failed (exit code {code}): {lines[-1] if lines else 'it said nothing'}"
