"""Files and cache of measured costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.measured import MeasuredCosts, MeasuredDevice
from partitioner.errors import UsageError
from partitioner.measure.store import cache_costs, cached_costs, read_costs, settings, write_costs


def costs(versions: dict[str, str]) -> MeasuredCosts:
    device = MeasuredDevice(type="CPU", title="it", hardware="cpu-core", overhead_seconds=1e-6)
    return MeasuredCosts(versions=versions, devices=(device,))


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    written = costs(settings())
    write_costs(written, tmp_path / "deep" / "costs.json")
    assert read_costs(tmp_path / "deep" / "costs.json") == written
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["costs.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"devices": [], "versions": {}, "schema": "other/1"}', '{"devices": 3}'])
def test_a_file_that_holds_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"wrong\.json holds no measured costs"):
        read_costs(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the costs .*none\.json"):
        read_costs(tmp_path / "none.json")


def test_the_cache_belongs_to_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cached_costs({"threads": "1"}).devices == ()
    cache_costs(costs({"threads": "1"}))
    assert cached_costs({"threads": "1"}) == costs({"threads": "1"})
    assert cached_costs({"threads": "2"}).devices == ()


def test_a_broken_cache_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_costs(costs({}))
    (path,) = (tmp_path / "partition").iterdir()
    path.write_text("{")
    assert cached_costs({}).devices == ()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "partition").write_text("a file where a directory would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_costs(costs({}))
