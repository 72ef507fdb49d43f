"""Actions: written short, read back, ordered."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.stages.actions import Action, ActionKind

actions = st.builds(Action, st.integers(0, 1000), st.sampled_from(ActionKind), st.integers(0, 1000))


def test_an_action_is_written_as_stage_kind_microbatch() -> None:
    assert str(Action(0, ActionKind.FORWARD, 3)) == "0F3"
    assert str(Action(12, ActionKind.BACKWARD, 10)) == "12B10"
    assert str(Action(1, ActionKind.WEIGHTS, 0)) == "1W0"


def test_an_action_is_read_as_stage_kind_microbatch() -> None:
    assert Action.parse("12B10") == Action(stage=12, kind=ActionKind.BACKWARD, microbatch=10)


@given(actions)
def test_what_is_written_is_read_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "0F", "F3", "0U3", "0f3", "-1F0", " 0F3", "0F3 ", "0F3\n", "0F3B1", "²F1"])
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Action.parse(text)


def test_actions_are_ordered_by_stage_and_then_by_number_of_microbatch() -> None:
    texts = ["0F2", "0F10", "1B0", "2F0", "10F0"]
    assert [str(action) for action in sorted(map(Action.parse, reversed(texts)))] == texts
