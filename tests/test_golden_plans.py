"""Plans of the test models are those that they were before the house was rebuilt; see `golden_plans.py`."""

from __future__ import annotations

import json

import pytest
from golden_plans import CASES, HERE, planned

QUICK = ("mlp", "tied", "nested")
"""Models whose plans take a second or so."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name.startswith(QUICK) else [pytest.mark.grid]) for name in CASES]
)
def test_golden_plan(name: str) -> None:
    assert planned(CASES[name]) == json.loads((HERE / "golden/plans" / f"{name}.json").read_text())
