"""The examples in docstrings of the public API run, and give what they say."""

from __future__ import annotations

import doctest

import pytest

import partitioner
from partitioner import api, options, plan_view
from partitioner.emit.keras import step_report, tensorboard_report

MODULES = (api, options, plan_view, step_report, tensorboard_report)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_every_function_and_option_of_the_api_has_an_example() -> None:
    told = {name for name in partitioner.__all__ if ">>>" in (getattr(partitioner, name).__doc__ or "")}
    errors = {name for name in partitioner.__all__ if name.endswith("Error")}
    assert set(partitioner.__all__) - errors - told <= {"AsyncUpdates", "explain", "measure_step", "set_up_devices"}
