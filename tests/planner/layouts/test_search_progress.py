"""What is told of a search while it runs."""

from __future__ import annotations

import partitioner
from partitioner.ir.units import format_percent, format_seconds
from partitioner.planner.layouts.search_progress import SearchProgress
from tests import models


def test_a_better_step_is_told_and_a_worse_one_is_not() -> None:
    told: list[tuple[str, float]] = []
    progress = SearchProgress(lambda text, fraction: told.append((text, fraction)), 1e9)
    for step, bound in ((2.0, None), (3.0, 1.0), (1.0, None), (1.0, 0.75)):
        progress.found(step, bound)
    assert [text.removesuffix(", at most 1000000000 s") for text, _ in told] == [
        "searching: best step 2.00 s",
        "searching: best step 2.00 s",
        "searching: best step 1.00 s",
        "searching: best step 1.00 s, lower bound 750 ms, gap 25 %",
    ]
    assert all(0 <= fraction < 1e-6 for _, fraction in told)


def test_the_last_best_step_is_that_of_the_plan() -> None:
    told: list[tuple[str, float]] = []
    plan = partitioner.plan(
        models.mlp(), "CPU:1-2", batch_size=16, strategy="layer-split", time_limit=5, microbatches=1,
        on_progress=lambda text, fraction: told.append((text, fraction)),
    )  # fmt: skip
    assert told[:2] == [("tracing", 0.0), ("tracing", 1.0)]
    texts = [text for text, _ in told[2:]]
    assert texts and all(text.startswith("searching: ") for text in texts)
    solver = plan.solver
    expected = f"best step {format_seconds(solver.objective)}, lower bound {format_seconds(solver.lower_bound)}"
    assert texts[-1].startswith(f"searching: {expected}, gap {format_percent(solver.gap)}, at most ")
