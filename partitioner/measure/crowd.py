"""Slow-down of ops while other devices of the host run the same step: they share its caches and its memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from partitioner.measure.step_times import WatchedRun, faster_half, seconds_by_execution, watched_run

LEAST_ROUNDS, MOST_ROUNDS = 3, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowding:
    """Slow-down of a step beside others: seconds there over seconds alone. Durations vary; it may be below 1.

    Attributes:
        of_op: Of each op or call; empty if it was not measured.
        of_ops: Of all of them together.
        of_step: Of the step. Where devices share threads, ops wait for one, and it is slowed down more than its ops.
    """

    of_op: Mapping[str, float] = field(default_factory=dict)
    of_ops: float = 1.0
    of_step: float = 1.0

    def slow_downs(self) -> dict[str, float]:
        """By op or call, what it waits included."""
        waits = max(1.0, self.of_step / self.of_ops)
        return {name: waits * ratio for name, ratio in self.of_op.items()}


def crowding(
    run: Callable[[], object],
    others: Sequence[Callable[[], object]],
    ops: Collection[str],
    *,
    budget_seconds: float,
) -> Crowding:
    """Slow-down of a step and of each op beside other devices, which runs alone and beside them in turns.

    Ctrl-C ends it; the result is then empty, as it is without other devices.

    Args:
        run: Runs the step to its end on a device.
        others: Run the step on the other devices, with variables of their own: the same ops by the same names.
        ops: Names of the ops of the step.
        budget_seconds: Seconds after which to stop, if there are at least a few rounds.
    """
    if not others:
        return Crowding()
    alone, beside = list[WatchedRun](), list[WatchedRun]()
    start = time.perf_counter()
    try:
        for other in others:  # TensorFlow traces and warms up before it counts
            other()
        while len(alone) < LEAST_ROUNDS or (len(alone) < MOST_ROUNDS and time.perf_counter() - start < budget_seconds):
            alone.append(watched_run(run))
            with busy(others):
                beside.append(watched_run(run))
    except KeyboardInterrupt:
        return Crowding()
    before, after = _medians(alone, ops), _medians(beside, ops)
    both = [name for name, seconds in before.items() if seconds and name in after]
    if not both:
        return Crowding()
    return Crowding(
        of_op={name: after[name] / before[name] for name in both},
        of_ops=sum(after[name] for name in both) / sum(before[name] for name in both),
        of_step=slow_down([run.plain_seconds for run in alone], [run.plain_seconds for run in beside]),
    )


def slow_down(alone: Sequence[float], beside: Sequence[float]) -> float:
    """From seconds that were taken in turns: a machine that others use may be slow for both of a round."""
    return statistics.median(after / before for before, after in zip(alone, beside, strict=True))


def _medians(runs: Sequence[WatchedRun], ops: Collection[str]) -> dict[str, float]:
    """Median seconds of each op on any device, over the faster half of the runs."""
    seconds_of_runs = [seconds_by_execution(run.events, ops, slowed=run.slowed) for run in runs]
    faster = faster_half(seconds_of_runs, [sum(seconds.values()) for seconds in seconds_of_runs])
    names = dict.fromkeys(name for seconds in faster for name in seconds)
    return {name: statistics.median(seconds[name] for seconds in faster if name in seconds) for name in names}


@contextmanager
def busy(runs: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Run all of them repeatedly, each in a thread of its own; an error in a thread is raised at the end."""
    is_over, errors = threading.Event(), list[Exception]()

    def repeat(run: Callable[[], object]) -> None:
        try:
            while not is_over.is_set():
                run()
        except Exception as error:  # of any kind: the waiting thread raises it
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
