"""Only the command line spells flags: what is below names arguments, and whoever shows a message spells them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import partitioner

ROOT = Path(partitioner.__file__).parent
FLAG = re.compile(r"--([a-z]|$)")
SPELLS = ("cli/", "spelling.py", "worker.py")
"""Command lines of their own, and what knows how both sides spell an argument."""


def modules() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(SPELLS):
            yield name


def flags(source: str) -> list[str]:
    """Texts with a flag in them, docstrings and the fixed parts of f-strings included."""
    texts = [
        f"line {node.lineno}: {node.value}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value)
    ]
    return sorted(texts)


def test_every_kind_of_text_is_looked_at() -> None:
    source = '"""Like `--seed`."""\nhelp = "--seed"\nnote = f"try --seed {help}"\nfine = "a -- b"  # as --seed does'
    assert [text.partition(":")[0] for text in flags(source)] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("module", modules())
def test_no_flag_below_the_command_line(module: str) -> None:
    assert flags((ROOT / module).read_text(encoding="utf-8")) == []
