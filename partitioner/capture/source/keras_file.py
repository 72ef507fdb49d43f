"""What a `.keras` file holds besides layers and weights: code, which loading would run."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_CODE = "__lambda__"
"""The class under which Keras stores a function as Python bytecode."""


def holders_of_code(path: Path) -> list[str]:
    """Names of the layers, losses, ... in a `.keras` file that hold Python bytecode; none if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            config = msgspec.json.decode(archive.read("config.json"))
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError, RecursionError):
        return []
    return list(dict.fromkeys(_holders(config, path.stem)))


def _holders(value: Any, holder: str) -> Iterator[str]:
    """The name of what holds each piece of code within a JSON value."""
    if isinstance(value, dict):
        if value.get("class_name") == _CODE:
            yield holder
        config = value.get("config")
        name = config.get("name") if isinstance(config, dict) else None
        for item in value.values():
            yield from _holders(item, name if isinstance(name, str) else holder)
    elif isinstance(value, list):
        for item in value:
            yield from _holders(item, holder)
