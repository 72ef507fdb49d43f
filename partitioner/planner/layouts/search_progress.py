"""Tell whoever waits for a plan how far the search is: the best step so far, its bound, the time that has passed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from partitioner.ir.units import format_percent, format_seconds
from partitioner.planner.model.tolerances import AS_FAST

Tell = Callable[[str, float], object]
"""Called with a text, whose part before the first colon stays the same, and the fraction of the time that passed."""


class SearchProgress:
    """The progress of planning one step.

    Args:
        tell: Called at every change.
        seconds: Seconds that the search may take.
    """

    def __init__(self, tell: Tell, seconds: float) -> None:
        self._tell, self._seconds, self._began = tell, seconds, time.monotonic()
        self._best_seconds = math.inf

    def found(self, step_seconds: float, bound_seconds: float | None = None) -> None:
        """A placement that fits was found; with a bound where its layout is planned to the end."""
        is_chosen = bound_seconds is not None  # of candidates that count as equally fast
        if step_seconds > self._best_seconds * (AS_FAST if is_chosen else 1) or (
            step_seconds == self._best_seconds and not is_chosen
        ):
            self._tell_of("")
            return
        self._best_seconds = step_seconds
        bound = ""
        if bound_seconds is not None and step_seconds > 0:
            gap = format_percent(1 - bound_seconds / step_seconds)
            bound = f", lower bound {format_seconds(bound_seconds)}, gap {gap}"
        self._tell_of(bound)

    def _tell_of(self, bound: str) -> None:
        passed = (time.monotonic() - self._began) / self._seconds
        best = f"best step {format_seconds(self._best_seconds)}{bound}"
        self._tell(f"searching: {best}, at most {self._seconds:.0f} s", min(passed, 1.0))


SILENT = SearchProgress(lambda _text, _fraction: None, math.inf)
