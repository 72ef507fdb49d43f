"""Deadlines, and all constants that divide the time of a search.

Work is counted in ops where plans must be the same on every machine: there, time only ends a search that takes too
long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

# All of planning. Tracing, costing, the search and writing the plan share the time limit.
SHARE_OF_TRACING_AND_SEARCH = 0.78
SEARCH_SECONDS = 8.0
"""Seconds of the search without a time limit; it goes on until it has found a plan."""
LEAST_SEARCH_SECONDS = 30.0
"""Seconds of the time limit that the search gets at least, however long tracing took."""

# The automatic choice of a strategy. Mirrored layouts come first: they need the least time.
SHARE_OF_MIRRORED = 0.4
SHARE_OF_ONE_REPLICA = 0.75
"""Share of the remaining time for a single replica."""
SHARE_OF_MIXED = 0.65
"""Share of the remaining time for several replicas of several devices, where there are many and these matter most."""
SHARE_OF_ESTIMATES = 0.3
"""Share of the time of several layouts for estimates of all of them."""
SHARE_OF_LAYOUT = 0.3
"""Share of the time left then for one of several layouts, so that the first does not take it all."""

# A single layout.
SHARE_OF_PIPELINES = 0.6
"""Share for cuts into stages; what they leave is for the step as one graph, and for improving the best."""
SHARE_AS_ONE_GRAPH = 0.7
"""Share of that for the step as one graph."""
SHARE_OF_FIRST_SOLVE = 0.25
"""Share for the solver's first answer: later answers are better only by less than the error of the simulation. The rest
is for an answer that fits into memory, if there is none yet."""
LEAST_SOLVE_SECONDS = 0.1
LOCAL_SEARCH_OPS_PER_SECOND, MAX_LOCAL_SEARCH_OPS = 10_000, 400_000
"""Ops that local search may simulate per second of the time limit, and at most: at about 20 microseconds an op, a fifth
of the time limit and at most 8 s."""
BOUNDARY_SEARCH_OPS = 200_000
"""Ops that may be cut when items are moved at boundaries of stages, at about 20 microseconds an op."""

# Explaining why nothing fits: a single packing, a single changed plan, and until the last of these begins.
PACKING_SECONDS = 10.0
CHANGED_PLAN_SECONDS = 5.0
EXPLANATION_SECONDS = 15.0
# A single changed plan of a cost graph, which is planned faster.
CHANGED_GRAPH_SECONDS = 5.0

# Measuring a kind of device, and the share for running a step beside other devices.
MEASURING_SECONDS = 30.0
SHARE_OF_CROWD = 0.3


def search_seconds(time_limit_seconds: float | None, tracing_seconds: float) -> float:
    """Seconds for the search after tracing: at least 30 s, or the whole time limit if that is less."""
    if time_limit_seconds is None:
        return SEARCH_SECONDS
    left = SHARE_OF_TRACING_AND_SEARCH * time_limit_seconds - tracing_seconds
    return max(min(time_limit_seconds, LEAST_SEARCH_SECONDS), left)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds; `is_soft` where a search goes on until it has found a plan."""

    at: float
    is_soft: bool = False

    @classmethod
    def after(cls, seconds: float, *, is_soft: bool = False) -> Deadline:
        """The deadline a number of seconds from now."""
        return cls(time.monotonic() + seconds, is_soft)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; 0 if it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.seconds_left

    def at_share(self, share: float) -> Deadline:
        """An earlier deadline, after this share of the time left."""
        return Deadline.after(share * self.seconds_left, is_soft=self.is_soft)
