"""The incumbent of a search: the best assignment and the best bound, reported when either improves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem

_ENOUGH = 1e-9
"""A relative gap that counts as closed: rounding to integers may have caused it."""

_LEAST_RISE = 1e-4
"""Relative rise of a bound that is reported at once: CP-SAT's bounds rise in tiny steps."""


class Incumbent:
    """The best assignment and bound of a problem; several threads may offer at the same time.

    Attributes:
        lower_bound: A lower bound of the largest load of any assignment.
        assignment: The best assignment so far.
        max_load: Its largest load.
    """

    def __init__(self, problem: MaxLoadProblem, report: Callable[[MaxLoadAnswer], None]) -> None:
        self._problem = problem
        self._report = report
        self._lock = threading.Lock()
        self._method = ""
        self._is_infeasible = False
        self._reported_bound = 0
        self.lower_bound = 0
        self.assignment: tuple[int, ...] | None = None
        self.max_load: int | None = None

    def offer(self, assignment: Sequence[int] | None, method: str) -> None:
        """Take a better assignment; an assignment that is not allowed is ignored."""
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
            # The proof "nothing is better than the incumbent" may give a bound above a newer incumbent.
            proved = bound if self.max_load is None else min(bound, self.max_load)
            if proved > self.lower_bound:
                self.lower_bound = proved
                if proved - self._reported_bound > _LEAST_RISE * proved or self.is_settled:
                    self._reported_bound = proved
                    self._report(self.answer)

    def prove_infeasible(self) -> None:
        """Record that there is no assignment."""
        self._is_infeasible = True

    @property
    def is_settled(self) -> bool:
        """Whether no better assignment is possible."""
        return self._is_infeasible or (
            self.max_load is not None and self.max_load - self.lower_bound <= _ENOUGH * self.max_load
        )

    @property
    def answer(self) -> MaxLoadAnswer:
        """The answer so far."""
        status = "infeasible" if self._is_infeasible else "time-limit" if self.assignment is None else "feasible"
        return MaxLoadAnswer(
            status="optimal" if self.assignment is not None and self.is_settled else status,
            lower_bound=self.lower_bound,
            assignment=self.assignment,
            max_load=self.max_load,
            method=self._method,
        )


class Budget:
    """The remaining wall seconds and work; work, in CP-SAT's deterministic units, ends a run alike on all machines."""

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
