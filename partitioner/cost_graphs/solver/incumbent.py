"""What a search knows: the best assignment so far and the best bound, reported as either improves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem

_ENOUGH = 1e-9
"""A relative gap below which there is nothing to win: what rounding costs to integers may have lost."""

_WORTH_TELLING = 1e-4
"""By how much a bound must rise to be reported at once: CP-SAT's rise a hair at a time."""


class Incumbent:
    """The best assignment and bound of one problem; threads may offer to it at the same time.

    Attributes:
        lower_bound: No assignment has a smaller largest load.
        assignment: The best so far.
        max_load: Its largest load.
    """

    def __init__(self, problem: MaxLoadProblem, report: Callable[[MaxLoadAnswer], None]) -> None:
        self._problem = problem
        self._report = report
        self._lock = threading.Lock()
        self._method = ""
        self._is_infeasible = False
        self._told_bound = 0
        self.lower_bound = 0
        self.assignment: tuple[int, ...] | None = None
        self.max_load: int | None = None

    def offer(self, assignment: Sequence[int] | None, method: str) -> None:
        """Take a better assignment; one that is not allowed is passed over."""
        if assignment is None or any(violations(self._problem, assignment)):
            return
        load = max(loads(self._problem, assignment))
        with self._lock:
            if self.max_load is None or load < self.max_load:
                self.assignment, self.max_load, self._method = tuple(assignment), load, method
                self._report(self.answer)

    def raise_bound(self, bound: int) -> None:
        """Take a better bound."""
        with self._lock:
            # A bound that comes from "nothing better than the best known" may be above what was found meanwhile.
            known = bound if self.max_load is None else min(bound, self.max_load)
            if known > self.lower_bound:
                self.lower_bound = known
                if known - self._told_bound > _WORTH_TELLING * known or self.is_settled:
                    self._told_bound = known
                    self._report(self.answer)

    def prove_infeasible(self) -> None:
        """There is no assignment."""
        self._is_infeasible = True

    @property
    def is_settled(self) -> bool:
        """Whether nothing better can be found."""
        return self._is_infeasible or (
            self.max_load is not None and self.max_load - self.lower_bound <= _ENOUGH * self.max_load
        )

    @property
    def answer(self) -> MaxLoadAnswer:
        """What is known now."""
        status = "infeasible" if self._is_infeasible else "time-limit" if self.assignment is None else "feasible"
        return MaxLoadAnswer(
            status="optimal" if self.assignment is not None and self.is_settled else status,
            lower_bound=self.lower_bound,
            assignment=self.assignment,
            max_load=self.max_load,
            method=self._method,
        )


class Budget:
    """What is left: wall seconds, and work in CP-SAT's deterministic units, which ends a run alike everywhere."""

    def __init__(self, seconds: float, work: float) -> None:
        self._end = time.monotonic() + seconds
        self.work = work

    @property
    def seconds(self) -> float:
        """Wall seconds left."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_spent(self) -> bool:
        """Whether it is time to stop."""
        return self.seconds <= 0 or self.work <= 0
