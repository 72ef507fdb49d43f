"""The callback that shows the step time of `fit` beside the plan's: which steps count, and what it prints."""

from __future__ import annotations

import re
from typing import Any

import pytest

import partitioner
from partitioner import StepReport
from tests import models
from tests.asking import asked

ROWS, STEPS = 8, 5


@pytest.fixture(scope="module")
def placed() -> Any:
    options = {"devices": ["CPU:1", "CPU:2"], "batch_size": ROWS, "strategy": "layer-split", "time_limit": 5}
    return partitioner.auto_place(models.mlp(), **asked(**options))


def fit(model: Any, report: StepReport, *, epochs: int = 2) -> None:
    x, y = models.vectors(ROWS * STEPS)
    model.fit(x, y, batch_size=ROWS, epochs=epochs, verbose=0, callbacks=[report])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"num_warmup_steps": 0}, 2 * (STEPS - 1)),  # the first of an epoch has no step before it
        ({"num_warmup_steps": STEPS}, STEPS - 1),
        ({"num_warmup_steps": STEPS + 3}, STEPS - 3),
        ({"num_warmup_steps": 0, "num_steps": 3}, 3),
    ],
)
def test_the_steps_that_count(placed: Any, options: dict[str, int], count: int) -> None:
    report = StepReport(verbose=0, **options)
    fit(placed, report)
    assert len(report.step_seconds) == count
    assert report.measured_seconds is not None
    assert min(report.step_seconds) <= report.measured_seconds <= max(report.step_seconds)
    assert report.predicted_seconds == placed.plan.predicted.step_seconds
    assert report.predicted_peak_bytes == placed.plan.predicted.peak_bytes
    assert report.measured_peak_bytes == {}  # TensorFlow does not count the memory of CPUs
    fit(placed, report)
    assert len(report.step_seconds) == count


def test_several_steps_in_a_call_are_as_many_steps(placed: Any) -> None:
    placed.steps_per_execution = 2
    placed.make_train_function(force=True)
    report = StepReport(verbose=0, num_warmup_steps=0)
    fit(placed, report, epochs=1)
    placed.steps_per_execution = 1
    placed.make_train_function(force=True)
    assert len(report.step_seconds) == STEPS - 2


def test_a_line_per_epoch_on_stderr(placed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fit(placed, StepReport(num_warmup_steps=0))
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    told = r"epoch (\d): step \d[\d.]* [mun]?s \(median of (\d) steps\), planned \d[\d.]* [mun]?s \(\d+\.\d\dx slower\)"
    assert [re.fullmatch(told, line).groups() for line in lines] == [("1", "4"), ("2", "8")]  # type: ignore[union-attr]
    fit(placed, StepReport(num_warmup_steps=100), epochs=1)
    assert "epoch 1: too few steps to measure\n" in capsys.readouterr().err
    fit(placed, StepReport(verbose=0))
    assert "epoch " not in capsys.readouterr().err


def test_a_stand_in_says_nothing_about_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"devices": ["GPU:0"], "batch_size": ROWS, "strategy": "single", "time_limit": 5}
    fit(partitioner.auto_place(models.mlp(), **asked(**options)), StepReport(num_warmup_steps=0), epochs=1)
    assert re.search(r"planned \d[\d.]* us; CPU:1 for GPU:0: says nothing about GPUs\n", capsys.readouterr().err)


def test_without_a_plan_nothing_is_predicted(
    placed: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed, "plan", None)  # as of a model that was loaded
    report = StepReport(num_warmup_steps=0)
    fit(placed, report, epochs=1)
    assert (report.predicted_seconds, report.predicted_peak_bytes) == (None, {})
    assert re.search(r"epoch 1: step [\d.]+ \w+ \(median of 4 steps\)\n", capsys.readouterr().err)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(partitioner.UsageError, match="StepReport is for a placed model"):
        fit(models.mlp(), StepReport())
    with pytest.raises(partitioner.UsageError, match="num_steps is 0; expected at least 1"):
        StepReport(num_steps=0)
