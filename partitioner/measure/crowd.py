"""Slow-down of ops while other devices of the host run the same step: they share its caches and its memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from partitioner.measure.step_times import faster_half, seconds_by_execution, watched_run

LEAST_RUNS, MOST_RUNS = 3, 9


def crowding(
    run: Callable[[], object],
    others: Sequence[Callable[[], object]],
    ops: Collection[str],
    *,
    budget_seconds: float,
) -> dict[str, float]:
    """Slow-down of each op: its duration beside other devices over its duration alone.

    Both vary, so that it may be below 1. Ctrl-C ends it; the result is then empty.

    Args:
        run: Runs the step to its end on a device.
        others: Run the step on the other devices, with variables of their own: the same ops by the same names.
        ops: Names of the ops of the step.
        budget_seconds: Seconds after which to stop, if there are at least a few runs.
    """
    try:
        alone = _median_by_op(run, ops, budget_seconds / 2)
        with _busy(others):
            beside = _median_by_op(run, ops, budget_seconds / 2)
    except KeyboardInterrupt:
        return {}
    return {name: beside[name] / seconds for name, seconds in alone.items() if seconds and name in beside}


def _median_by_op(run: Callable[[], object], ops: Collection[str], budget_seconds: float) -> dict[str, float]:
    """Median duration of each op over the faster half of the runs, on any device."""
    runs: list[dict[str, float]] = []
    start = time.perf_counter()
    while len(runs) < LEAST_RUNS or (len(runs) < MOST_RUNS and time.perf_counter() - start < budget_seconds):
        pair = watched_run(run)
        runs.append(seconds_by_execution(pair.events, ops, slowed=pair.slowed))
    faster = faster_half(runs, [sum(seconds.values()) for seconds in runs])
    names = dict.fromkeys(name for seconds in faster for name in seconds)
    return {name: statistics.median(seconds[name] for seconds in faster if name in seconds) for name in names}


@contextmanager
def _busy(runs: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Run all of them repeatedly, each in a thread of its own; an error in a thread is raised at the end."""
    is_over, errors = threading.Event(), list[Exception]()

    def repeat(run: Callable[[], object]) -> None:
        try:
            while not is_over.is_set():
                run()
        except Exception as error:  # of any kind: the waiting thread raises it
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(run,), daemon=True) for run in runs]
    for run in runs:  # TensorFlow traces and warms up before it counts
        run()
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
