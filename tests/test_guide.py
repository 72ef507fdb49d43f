"""The guide's messages are those of the code, with the exit codes of the contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "partitioner/GUIDE.md").read_text(encoding="utf-8")
SOURCE = "\n".join(
    path.read_text(encoding="utf-8") for room in ("partitioner", "cost_models") for path in (ROOT / room).rglob("*.py")
)
ROWS = re.findall(r"^\| `([^`]+)` \| (\d) \|", GUIDE, re.MULTILINE)


@pytest.mark.parametrize("message", [message for message, _ in ROWS])
def test_each_message_of_the_guide_is_in_the_code(message: str) -> None:
    for part in filter(None, message.split("...")):
        # The code cuts long texts at blanks, and puts values into braces.
        words = [re.escape(word) for word in part.split()]
        assert re.search(r'(?:\s|"\s*f?"|\{[^}]*\})+'.join(words), SOURCE), part


def test_every_kind_of_error_is_there() -> None:
    assert {int(code) for _, code in ROWS} == {1, 2, 3, 4, 5, 6, 7, 8}
