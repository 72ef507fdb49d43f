"""When a search has to end."""

from __future__ import annotations

import time
from dataclasses import dataclass

_LEAST_SEARCH_SECONDS = 30.0
_SHARE_OF_TRACING_AND_SEARCH = 0.78


def search_seconds(time_limit_seconds: float, tracing_seconds: float) -> float:
    """What tracing leaves the search of a time limit: 30 s in any case, or all where it is less.

    Of the limit, tracing and search have 78 %: the plan must be written too.
    """
    left = _SHARE_OF_TRACING_AND_SEARCH * time_limit_seconds - tracing_seconds
    return max(min(time_limit_seconds, _LEAST_SEARCH_SECONDS), left)


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
