"""Actions of a timeline in words."""

from __future__ import annotations

from partitioner.stages.actions import UPDATE, Action, ActionKind

_KINDS = {ActionKind.FORWARD: "forward", ActionKind.BACKWARD: "backward"}


def action_in_words(text: str) -> str:
    """`stage 0, forward of microbatch 3` for `0F3`; `update of variables` for `U`.

    Raises:
        ValueError: The text is neither.
    """
    if text == UPDATE:
        return "update of variables"
    action = Action.parse(text)
    return f"stage {action.stage}, {_KINDS[action.kind]} of microbatch {action.microbatch}"
