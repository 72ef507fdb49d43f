"""Actions of a schedule: the forward or the backward pass of one stage for one microbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

UPDATE = "U"
"""The action of an update, which is of no stage and no microbatch."""


class ActionKind(StrEnum):
    """The two passes of a training step."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One pass of one stage for one microbatch, both counted from 0; written `0F3`: stage 0, forward, microbatch 3."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` writes.

        Raises:
            ValueError: The text is not stage, `F` or `B`, microbatch.
        """
        match = re.fullmatch("([0-9]+)([FB])([0-9]+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not an action; write e.g. 0F3 (stage 0, forward, microbatch 3)")
        return cls(int(match[1]), ActionKind(match[2]), int(match[3]))
