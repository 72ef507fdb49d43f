"""A few rows of the coverage benchmark, of each kind of model one: `python -m tests.benchmarks.coverage` runs all."""

from __future__ import annotations

import pytest

from tests.benchmarks.coverage import Case, run_here

ROWS = (
    Case("transformer/rotary", "training", 2),
    Case("transformer/cache-owned", "inference", 1),
    Case("recurrent/bidirectional", "training", 2),
    Case("structure/variable-counted", "training", 1),
    Case("own-step/several-updates", "training", 1),
    Case("preprocessing/text-vectorization", "inference", 1),
    Case("ops/fourier", "training", 1),
    Case("dtype/bfloat16-conv", "training", 1),
)


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.model}-{case.mode}-{case.microbatches}")
def test_a_model_is_planned_placed_and_verified(case: Case) -> None:
    row = run_here(case)
    assert row.outcome == "pass", (row.why, row.frames, row.notes)
    assert not row.misplaced
    assert not row.uncosted
