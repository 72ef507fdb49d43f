"""When a search has to end."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by the clock that never goes back, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def seconds_left(self) -> float:
        """Until then; 0 if it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.seconds_left

    def at_share(self, share: float) -> Deadline:
        """A sooner one, when this share of the time left is over."""
        return Deadline.after(share * self.seconds_left)
