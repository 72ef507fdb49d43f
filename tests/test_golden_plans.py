"""Plans of the test models are those that they were before the house was rebuilt; see `golden_plans.py`."""

from __future__ import annotations

import json

import pytest
from golden_plans import CASES, HERE, planned

SLOW = {name for name in CASES if name.startswith(("transformer", "encoder", "two_towers", "float16", "regularized"))}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_golden_plan(name: str) -> None:
    assert planned(CASES[name]) == json.loads((HERE / "golden/plans" / f"{name}.json").read_text())
