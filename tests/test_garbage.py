"""Garbage is collected again after planning, whatever became of it."""

from __future__ import annotations

import gc

import pytest

from partitioner.garbage import collected_later


def test_collections_wait_until_the_end() -> None:
    with collected_later():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_come_back_after_an_error() -> None:
    with pytest.raises(KeyError), collected_later():
        raise KeyError
    assert gc.isenabled()


def test_who_had_switched_them_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with collected_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_counts_as_old() -> None:
    gc.unfreeze()  # each test leaves frozen objects behind
    with collected_later():
        made = [[index] for index in range(1_000)]
    assert any(made is one for one in gc.get_objects(2))


def test_frozen_objects_stay_frozen() -> None:
    made = [[1]]
    gc.freeze()
    with collected_later():
        pass
    assert not any(made is one for one in gc.get_objects())
