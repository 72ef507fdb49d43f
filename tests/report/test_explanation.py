"""An explanation as text and as JSON: what is said of limits, of simpler plans, and of moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from partitioner.ir.plan import Baseline, Objective, PlanDocument, Strategy, WhatIf
from partitioner.report.explanation import SCHEMA, Explanation, Move, explain_plan
from tests.plan_memory import with_memory

MOVE = Move(
    change="8 microbatches",
    before=2e-3,
    after=1.5e-3,
    unit="s",
    gain=0.25,
    command="partition model.py --devices GPU:0,GPU:1 --microbatches 8 --strategy layer-split --time-limit 120",
    request={"devices": "GPU:0,GPU:1", "microbatches": 8},
)
OTHERS = (
    WhatIf(change="the link nvlink2, 150 GB/s", before=2e-3, after=2e-3, unit="s"),
    WhatIf(change="2 more devices like GPU:1", before=2e-3, after=None, unit="s", reason="5 rows for 4 devices"),
)


def test_the_text(pipeline_plan: PlanDocument, golden: Callable[[str, str], None]) -> None:
    explanation = replace(explain_plan(with_memory(pipeline_plan)), moves=(MOVE,), others=OTHERS)
    golden("explanation.txt", explanation.to_text())


def test_a_command_is_a_line_however_long(split_plan: PlanDocument) -> None:
    long = replace(MOVE, command=f"partition model.py --pin '{'x' * 200}=GPU:0'")
    assert f"\n     {long.command}\n" in replace(explain_plan(split_plan), moves=(long,)).to_text()


def test_without_moves_the_text_says_why_and_how_to_get_them(split_plan: PlanDocument) -> None:
    text = explain_plan(split_plan, not_planned="not planned: no model", command="partition explain p.json M").to_text()
    assert text.endswith("\nnext moves\n  not planned: no model\n     partition explain p.json M\n")
    assert explain_plan(split_plan).to_text().endswith("\n  none of the changes that were planned gains 1 %\n")


def test_the_keys_of_the_json(split_plan: PlanDocument) -> None:
    """The contract of the schema: keys may be added, never taken away."""
    explanation = replace(explain_plan(split_plan), moves=(MOVE,), others=OTHERS)
    data = json.loads(explanation.to_json())
    assert data["schema"] == SCHEMA == "partition-explanation/1"
    keys = {"schema", "model", "plan", "objective", "unit", "limits", "simpler", "moves", "others", "not_planned"}
    assert keys <= set(data)
    assert {"kind", "share", "sentence", "devices", "layers", "tensors"} <= set(data["limits"][0])
    assert {"change", "before", "after", "unit", "gain", "command", "request"} <= set(data["moves"][0])
    assert data["limits"][0]["kind"] == "bubble"
    assert data["moves"][0]["request"] == MOVE.request


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ((3e-3, True), "3.00 ms a step (1.50x slower): as good only where this plan waited 1.00 ms longer"),
        ((2.01e-3, True), "2.01 ms a step: as good as this plan"),
        ((1e-3, True), "1.00 ms a step: better than this plan, which takes 2.00 ms"),
        ((1e-3, False), "1.00 ms a step against 2.00 ms, but does not fit: as good only with more memory"),
        (None, "was not compared; the strategy auto compares it where it gives the same numbers"),
    ],
)
@pytest.mark.parametrize(
    ("name", "words"), [("single-device GPU:1", "one device"), ("mirrored on 2 devices", "plain data parallelism")]
)
def test_when_a_simpler_plan_is_as_good(
    split_plan: PlanDocument, baseline: tuple[float, bool] | None, said: str, name: str, words: str
) -> None:
    other = [Baseline(name="greedy", step_seconds=1e-6, fits=True)]
    if baseline is not None:
        other.append(Baseline(name=name, step_seconds=baseline[0], fits=baseline[1]))
    sentences = explain_plan(replace(split_plan, baselines=tuple(other))).simpler
    assert any(sentence.startswith(f"{words}: {said}") for sentence in sentences)


def test_replicas_that_change_the_numbers_say_so(split_plan: PlanDocument) -> None:
    """As `strategies.py` notes it of a model with batch normalization."""
    mirrored = Baseline(name="mirrored on 2 devices", step_seconds=1e-3, fits=True)
    note = "the strategy mirrored would be 2.00 times as fast, but would change the numbers: rows meet in bn"
    plan = replace(split_plan, baselines=(mirrored,), notes=(note,))
    assert explain_plan(plan).simpler[1].endswith("which takes 2.00 ms, but would change the numbers")


def test_a_simple_plan_says_so(split_plan: PlanDocument, single_plan: PlanDocument) -> None:
    assert explain_plan(single_plan).simpler[0] == "one device: this plan is on one device"
    mirrored = replace(split_plan, strategy=Strategy.MIRRORED)
    assert explain_plan(mirrored).simpler[1] == "plain data parallelism: this plan is"


def test_the_objective_memory_counts_bytes(split_plan: PlanDocument) -> None:
    explanation: Explanation = explain_plan(replace(split_plan, objective=Objective.MEMORY))
    assert (explanation.objective, explanation.unit) == (1229 * 2**20, "bytes")
    held = replace(MOVE, before=4 * 2**30, after=3 * 2**30, unit="bytes")
    assert "1. 8 microbatches: largest peak 3.0 GiB, 25 % less\n" in replace(explanation, moves=(held,)).to_text()
