"""Files kept between runs, in the user's folder for caches: `$XDG_CACHE_HOME/partition`, else `~/.cache/partition`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the cache, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partition"


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
