"""Actions of a timeline in words."""

from __future__ import annotations

from partitioner.stages.actions import UPDATE, Action, ActionKind

_KINDS = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.WEIGHTS: "gradients of weights",
}


def action_in_words(text: str, *, num_microbatches: int) -> str:
    """`stage 0, forward of microbatch 3` for `0F3`; `stage 0, forward` in one piece; `update of variables` for `U`.

    Raises:
        ValueError: The text is neither.
    """
    if text == UPDATE:
        return "update of variables"
    action = Action.parse(text)
    of_which = f" of microbatch {action.microbatch}" if num_microbatches > 1 else ""
    return f"stage {action.stage}, {_KINDS[action.kind]}{of_which}"
