"""When a search has to end, and how its time is divided: every share of time and every allowance of work is here.

Work is counted in ops where plans have to be the same on every machine: there, time only cuts off what takes too long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

# All of planning. Tracing, costing, the search and writing the plan down share the time limit.
SHARE_OF_TRACING_AND_SEARCH = 0.78
LEAST_SEARCH_SECONDS = 30.0
"""What the search has of the time limit however long tracing took, if the limit is as long."""

# The automatic choice of a strategy. Replicas of one device each come first: they need the least.
SHARE_OF_MIRRORED = 0.4
SHARE_OF_ONE_REPLICA = 0.75
"""Of what these leave, for one replica."""
SHARE_OF_ONE_REPLICA_OF_MANY = 0.35
"""The same with many devices, where replicas of some of them are what matters most."""
SHARE_OF_LAYOUT = 0.3
"""Of the time left then, for one layout of several, so that the first does not take it all."""

# One layout.
SHARE_AS_ONE_GRAPH = 0.4
"""For the step as one graph, where stages and microbatches are to be looked at too."""
SHARE_OF_FIRST_SOLVE = 0.25
"""For the solver's first answer: later ones are better by less than the simulation tells apart. The rest is for finding
one that fits, if that has none."""
LEAST_SOLVE_SECONDS = 0.1
LOCAL_SEARCH_OPS_PER_SECOND, MAX_LOCAL_SEARCH_OPS = 10_000, 400_000
"""Ops that local search may simulate per second of the time limit, and at most: at about 20 microseconds an op, a fifth
of the time limit and at most 8 s."""
BOUNDARY_SEARCH_OPS = 200_000
"""Ops that may be cut when items are moved at boundaries of stages, at about 20 microseconds an op."""

# Saying why nothing fits: one packing, one plan with a change, and all of them.
PACKING_SECONDS = 10.0
CHANGED_PLAN_SECONDS = 10.0
EXPLANATION_SECONDS = 60.0
# The same for cost graphs, which are planned faster.
CHANGED_GRAPH_SECONDS = 5.0
GRAPH_EXPLANATION_SECONDS = 30.0

# Measuring one kind of device, and of that, what running a step beside others takes.
MEASURING_SECONDS = 30.0
SHARE_OF_CROWD = 0.3


def search_seconds(time_limit_seconds: float, tracing_seconds: float) -> float:
    """What tracing leaves the search of a time limit: 30 s in any case, or all where it is less."""
    left = SHARE_OF_TRACING_AND_SEARCH * time_limit_seconds - tracing_seconds
    return max(min(time_limit_seconds, LEAST_SEARCH_SECONDS), left)


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
