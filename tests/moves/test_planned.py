"""Moves that are planned: those that gain, as calls in Python that gain what is said."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import partitioner
from partitioner.errors import UsageError

CPUS = "CPU:0,CPU:1"


def model(width: int = 64) -> keras.Model:
    keras.backend.clear_session()
    layers = [keras.layers.Dense(width, name=f"layer_{index}") for index in range(2)]
    made = keras.Sequential([keras.Input((width,)), *layers], name="pair")
    made.compile(optimizer="adam", loss="mse")
    return made


def test_a_move_is_a_call_that_gains_what_is_said_each_time() -> None:
    """A split of two small layers is slower than one device, which the planner finds when it may choose."""
    pair = model()
    plan = partitioner.plan(pair, CPUS, strategy="layer-split", microbatches=2, time_limit=10)
    explanation = partitioner.explain(pair, plan)
    assert partitioner.explain(pair, plan) == explanation
    assert explanation.objective == plan.predicted.step_seconds
    assert explanation.not_planned == ""
    assert 1 <= len(explanation.moves) <= 3
    best = explanation.moves[0]
    assert best.command.startswith("partitioner.plan(model, ")
    again = eval(best.command, {"partitioner": partitioner, "model": pair})
    assert again.predicted.step_seconds == pytest.approx(best.after, rel=0.01)
    assert best.gain == pytest.approx(1 - again.predicted.step_seconds / plan.predicted.step_seconds)
    # Each change is a move or named below them, and what is a move does all that a better one does and no more.
    named = [move.change for move in explanation.moves] + [row.change for row in explanation.others]
    assert len(named) == len(set(named)) >= 4
    assert "strategy and microbatches left to the planner" in named


def test_the_words_alone_need_no_model() -> None:
    pair = model()
    plan = partitioner.plan(pair, "CPU:0", time_limit=10)
    words = plan.explain()
    assert (words.moves, words.not_planned) == ((), "not asked for")
    assert words.limits == partitioner.explain(pair, plan).limits


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "the plan is for another model"),
        ({"request": {}}, "the plan is of an earlier version, which did not keep what was asked for"),
        ({"request": {"devices": "CPU:0", "costs": "measured"}}, "the costs of the plan were measured"),
        ({"request": {"devices": None}}, "the plan does not say its devices"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: dict[str, Any], said: str) -> None:
    plan = partitioner.plan(model(), "CPU:0", time_limit=10)
    with pytest.raises(UsageError, match=said):
        partitioner.explain(model(width=32), partitioner.Plan.of(plan, **arguments))
