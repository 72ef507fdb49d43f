"""Plans that were made before are taken again, and only where nothing that they follow from has changed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

import partitioner
from partitioner import Step
from partitioner.measure.store import read_costs, write_costs
from partitioner.plan_cache import known_plan, remember_plan
from partitioner.plan_view import Plan

TWO = ["CPU:1", "CPU:2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the folder of its files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "partition"


def _model(units: int = 4, loss: str = "mse") -> keras.Model:
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def _searched(plan: Plan) -> bool:
    return "search" in plan.planning_seconds


@pytest.mark.usefixtures("folder")
def test_the_same_step_and_request_give_the_plan_made_before() -> None:
    first = partitioner.plan(_model(), TWO, strategy="layer-split")
    again = partitioner.plan(_model(), TWO, strategy="layer-split")
    assert (_searched(first), _searched(again)) == (True, False)
    assert again.to_json() == first.to_json()
    assert partitioner.verify(again.traced.model, partitioner.place(again.traced.model, again)).passed


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "changed",
    [
        {"batch_size": 16},
        {"seed": 1},
        {"strategy": "auto"},
        {"memory_limit": "1GiB"},
        {"microbatches": 2},
        {"hardware": "t4"},
        {"step": Step(training=False)},
        {"step": Step(jit_compile=True)},
        {"cache": False},
    ],
)
def test_another_request_is_planned(changed: dict[str, Any]) -> None:
    partitioner.plan(_model(), TWO, strategy="single")
    assert _searched(partitioner.plan(_model(), TWO, **{"strategy": "single", **changed}))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("changed", [{"units": 5}, {"loss": "mae"}])
def test_another_model_is_planned(changed: dict[str, Any]) -> None:
    partitioner.plan(_model(), TWO, strategy="single")
    assert _searched(partitioner.plan(_model(**changed), TWO, strategy="single"))


@pytest.mark.usefixtures("folder")
def test_other_measured_costs_are_planned_with(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    partitioner.plan(_model(), TWO, costs="measured").save_costs(costs)
    partitioner.plan(_model(), TWO, costs=costs)
    assert not _searched(partitioner.plan(_model(), TWO, costs=costs))
    known = read_costs(costs)
    (device,) = known.devices
    write_costs(replace(known, devices=(replace(device, overhead_seconds=1.0),)), costs)
    assert _searched(partitioner.plan(_model(), TWO, costs=costs))


def test_a_newer_source_file_is_another_planner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitioner.plan(_model(), TWO)
    monkeypatch.setattr("partitioner.plan_cache._newest_source", lambda: time.time_ns())
    assert _searched(partitioner.plan(_model(), TWO))
    assert len(list(folder.iterdir())) == 2


def test_a_damaged_file_is_planned_anew_and_mended(folder: Path) -> None:
    partitioner.plan(_model(), TWO)
    (path,) = folder.iterdir()
    path.write_text(path.read_text()[:100])
    anew = partitioner.plan(_model(), TWO)
    again = partitioner.plan(_model(), TWO)
    assert (_searched(anew), _searched(again)) == (True, False)
    assert again.to_json() == anew.to_json()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _searched(partitioner.plan(_model(), TWO))
    assert _searched(partitioner.plan(_model(), TWO))


def test_those_longest_without_use_are_forgotten(folder: Path) -> None:
    document = partitioner.plan(_model(), TWO, cache=False).document
    for index in range(30):
        remember_plan(f"{index}", document)
        os.utime(folder / f"plan-{index}.json", (index, index))
    assert known_plan("0") == document
    remember_plan("one more", document)
    assert len(list(folder.iterdir())) == 30
    assert (known_plan("0"), known_plan("1"), known_plan("2")) == (document, None, document)
