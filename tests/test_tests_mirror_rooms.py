"""Tests lie where their subject does, `tests/<package>/...` for `partitioner/<package>/...`, and import no other."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROOMS = (TESTS.parent / "partitioner", TESTS.parent)


def test_each_folder_of_tests_is_a_room() -> None:
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    assert folders
    strangers = [str(folder) for folder in folders if not any((room / folder).is_dir() for room in ROOMS)]
    assert not strangers


def test_no_test_file_is_imported() -> None:
    """Nor by scripts in strings, which other processes run."""
    imports = re.compile(r"^ *(?:from|import) .*\btest_\w+", re.MULTILINE)
    found = [line for file in TESTS.rglob("*.py") for line in imports.findall(file.read_text(encoding="utf-8"))]
    assert not found
