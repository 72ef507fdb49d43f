"""Actions of a schedule: the forward pass of one stage for one microbatch, its backward pass, or the rest of that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from partitioner.ir.stage_programs import ProgramKind

UPDATE = "U"
"""The action of an update, which is of no stage and no microbatch."""


class ActionKind(StrEnum):
    """The two passes of a training step, and what some schedules leave of the second for later."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


KIND_OF_CALLS = {
    ProgramKind.FORWARD: ActionKind.FORWARD,
    ProgramKind.BACKWARD: ActionKind.BACKWARD,
    ProgramKind.WEIGHTS: ActionKind.WEIGHTS,
}
"""The kinds of programs that run for every microbatch, and of the actions that call them."""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """What one stage does for one microbatch, both counted from 0; written `0F3`: stage 0, forward, microbatch 3."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` writes.

        Raises:
            ValueError: The text is not stage, `F`, `B` or `W`, microbatch.
        """
        match = re.fullmatch("([0-9]+)([FBW])([0-9]+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not an action; write e.g. 0F3 (stage 0, forward, microbatch 3)")
        return cls(int(match[1]), ActionKind(match[2]), int(match[3]))
