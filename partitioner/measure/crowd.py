"""Slow-down of ops while other devices of the host run the same step: they share its caches and its memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from partitioner.measure.step_times import faster_half, seconds_by_execution, undisturbed, watched_run

LEAST_RUNS, MOST_RUNS = 3, 9


def crowding(
    run: Callable[[], object],
    others: Sequence[Callable[[], object]],
    ops: Collection[str],
    *,
    budget_seconds: float,
) -> dict[str, float]:
    """Slow-down of each op beside other devices.

    That is its duration there over its duration alone, times what the step is slowed down more than its ops are: where
    devices share threads, ops wait for one. Durations vary, so that it may be below 1. Ctrl-C ends it; the result is
    then empty.

    Args:
        run: Runs the step to its end on a device.
        others: Run the step on the other devices, with variables of their own: the same ops by the same names.
        ops: Names of the ops of the step.
        budget_seconds: Seconds after which to stop, if there are at least a few runs.
    """
    try:
        alone, alone_seconds = _medians(run, ops, budget_seconds / 2)
        with _busy(others):
            beside, beside_seconds = _medians(run, ops, budget_seconds / 2)
    except KeyboardInterrupt:
        return {}
    both = [name for name, seconds in alone.items() if seconds and name in beside]
    of_ops = sum(beside[name] for name in both) / sum(alone[name] for name in both) if both else 1.0
    waits = max(1.0, beside_seconds / alone_seconds / of_ops)
    return {name: waits * beside[name] / alone[name] for name in both}


def _medians(run: Callable[[], object], ops: Collection[str], budget_seconds: float) -> tuple[dict[str, float], float]:
    """Median duration of each op on any device, and of the step, over the faster half of the runs."""
    runs: list[dict[str, float]] = []
    steps: list[float] = []
    start = time.perf_counter()
    while len(runs) < LEAST_RUNS or (len(runs) < MOST_RUNS and time.perf_counter() - start < budget_seconds):
        pair = watched_run(run)
        runs.append(seconds_by_execution(pair.events, ops, slowed=pair.slowed))
        steps.append(pair.plain_seconds)
    faster = faster_half(runs, [sum(seconds.values()) for seconds in runs])
    names = dict.fromkeys(name for seconds in faster for name in seconds)
    medians = {name: statistics.median(seconds[name] for seconds in faster if name in seconds) for name in names}
    return medians, undisturbed(steps)


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
