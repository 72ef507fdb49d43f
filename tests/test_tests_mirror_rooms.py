"""Tests lie where their subject does: `tests/<package>/...` for `partitioner/<package>/...`."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOMS = (TESTS.parent / "partitioner", TESTS.parent)


def test_each_folder_of_tests_is_a_room() -> None:
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    assert folders
    strangers = [str(folder) for folder in folders if not any((room / folder).is_dir() for room in ROOMS)]
    assert not strangers
