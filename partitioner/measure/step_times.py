"""Measure the duration of a step, and of every op in it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from partitioner.errors import UsageError
from partitioner.measure.profiler import Event, profiled
from partitioner.spelling import argument

_Run = TypeVar("_Run")
_Found = TypeVar("_Found")

LEAST_WARMUPS, MOST_WARMUPS = 2, 12
STABLE = 0.1
"""Two runs in a row that differ by less than this share are warm: kernels are chosen, memory is allocated."""
LEAST_RUNS, MOST_RUNS = 3, 25
MOMENTS, MOMENT_SECONDS = 10, 0.05
"""Of what takes turns: for a second or two, a machine that others use may take a fifth longer for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Medians over the faster half of several runs of a step.

    Attributes:
        step_seconds: Seconds of a whole step, not profiled.
        op_seconds: Seconds by op; a loop or a branch includes its body. Ops that TensorFlow folded away are missing.
        num_runs: Runs behind each number.
        kernels: By op, the type of the kernel that ran under its name.
    """

    step_seconds: float
    op_seconds: Mapping[str, float]
    num_runs: int
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """A run of a step under the profiler, and one without it just before, both warm.

    Attributes:
        events: What the profiler recorded.
        seconds: Seconds of the run under the profiler.
        plain_seconds: Seconds of the other.
    """

    events: Sequence[Event]
    seconds: float
    plain_seconds: float

    @property
    def slowed(self) -> float:
        """How much the profiler slowed the run down."""
        return max(1.0, self.seconds / self.plain_seconds)


def time_step(
    run: Callable[[], object],
    ops: Collection[str],
    *,
    device_type: str = "CPU",
    budget_seconds: float = 20.0,
    on_progress: Callable[[float], object] = lambda _: None,
) -> StepTimes:
    """Run a step repeatedly, in turns by itself and under the profiler.

    Ctrl-C ends it early and returns the times so far; without a finished run, it raises KeyboardInterrupt.

    Args:
        run: Runs the step to its end.
        ops: Names of the ops of the step.
        device_type: Of the device that it runs on, `CPU` or `GPU`.
        budget_seconds: Seconds after which to stop, if there are at least a few runs.
        on_progress: Called with the fraction done.

    Raises:
        UsageError: The profiler may not record the kernels of GPUs.
    """
    pairs: list[WatchedRun] = []
    ops_of_run: list[dict[str, float]] = []
    kernels: dict[str, str] = {}
    start = time.perf_counter()
    try:
        warm_up(run)
        while len(ops_of_run) < MOST_RUNS:
            passed = time.perf_counter() - start
            if passed > budget_seconds and len(ops_of_run) >= LEAST_RUNS:
                break
            pair = watched_run(run)
            refuse_missing_device_plane(pair.events, device_type)
            pairs.append(replace(pair, events=()))
            ops_of_run.append(seconds_by_op(pair.events, ops, slowed=pair.slowed))
            kernels |= kernel_by_op(pair.events, ops)
            on_progress(min(1.0, max(len(ops_of_run) / MOST_RUNS, passed / budget_seconds)))
    except KeyboardInterrupt:
        if not ops_of_run:
            raise
    plain = [pair.plain_seconds for pair in pairs]
    faster = faster_half(ops_of_run, [pair.seconds for pair in pairs])
    seen = dict.fromkeys(name for seconds in faster for name in seconds)
    return StepTimes(
        step_seconds=undisturbed(plain),
        op_seconds={name: statistics.median(seconds.get(name, 0.0) for seconds in faster) for name in seen},
        num_runs=len(ops_of_run),
        kernels=kernels,
    )


def watched_run(run: Callable[[], object]) -> WatchedRun:
    """Run a step three times: to have its data in caches again, to time it, and under the profiler."""
    run()
    plain, watched = _seconds(run), list[float]()
    events = profiled(lambda: watched.append(_seconds(run)))
    return WatchedRun(events=events, seconds=watched[0], plain_seconds=plain)


def seconds_in_turns(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each run: in each of several moments of its own their median, and of these that of the faster half.

    Within a moment it is as it usually is: the faster half of all runs had a step of 8 ms take 6 % less.
    """
    return [undisturbed(seconds) for seconds in in_turns([partial(seconds_of_moment, run) for run in runs])]


def in_turns(moments: Sequence[Callable[[], _Found]]) -> list[list[_Found]]:
    """What is found in each moment, by its turns."""
    turns = [[moment() for moment in moments] for _ in range(MOMENTS)]
    return [list(found) for found in zip(*turns, strict=True)]


def seconds_of_moment(run: Callable[[], object]) -> float:
    """Median seconds of a run that is repeated for a moment."""
    run()  # finds the data of others in caches
    moment: list[float] = []
    while sum(moment) < MOMENT_SECONDS:
        moment.append(_seconds(run))
    return statistics.median(moment)


def undisturbed(seconds: Sequence[float]) -> float:
    """The median of the faster half."""
    return statistics.median(faster_half(seconds, seconds))


def faster_half(runs: Sequence[_Run], seconds: Sequence[float]) -> list[_Run]:
    """The half of some runs that took the fewest seconds: other work of the machine only slows runs down."""
    order = sorted(range(len(runs)), key=seconds.__getitem__)
    return [runs[index] for index in order[: (len(runs) + 1) // 2]]


def refuse_missing_device_plane(events: Iterable[Event], device_type: str) -> None:
    """Refuse to take the time in which the host starts kernels for the time of the kernels.

    Raises:
        UsageError: The step ran on a GPU, and the profiler recorded no kernel.
    """
    if device_type == "GPU" and not any(event.plane.startswith("/device:GPU") for event in events):
        raise UsageError(
            "cannot measure on GPUs: TensorFlow's profiler recorded no kernel of a GPU",
            notes=["its library, CUPTI, is missing, or the driver keeps performance counters to administrators"],
            help="install tensorflow[and-cuda]; load the driver with NVreg_RestrictProfilingToAdminUsers=0, or give "
            f"the container the capability SYS_ADMIN; or plan with {argument('costs', 'analytic')}",
        )


def warm_up(run: Callable[[], object]) -> None:
    """Run a step until two runs in a row take as long, at most twelve times."""
    before = math.inf
    for number in range(MOST_WARMUPS):
        seconds = _seconds(run)
        if number + 1 >= LEAST_WARMUPS and abs(seconds - before) <= STABLE * before:
            return
        before = seconds


def seconds_by_op(events: Sequence[Event], ops: Collection[str], *, slowed: float = 1.0) -> dict[str, float]:
    """Seconds of each op in a run: of its kernels where it ran on a GPU, else on its thread.

    An event belongs to the op that it names (`NAME:TYPE`), or to the loop or branch whose body that op is in
    (`LOOP/body/_7/NAME:TYPE`). A call took until it was done.

    Args:
        events: What the profiler recorded.
        ops: Names of the ops, and of the calls.
        slowed: Seconds of the run over those without the profiler. It slows calls alike, of loops above all: what it
            records of many short ops comes between them, not in their own seconds.
    """
    host: dict[str, float] = {}
    device: dict[str, float] = {}
    for event in events:
        on_device = event.plane.startswith("/device:")
        owner = owner_of(str(event.stats.get("tf_op", "")) if on_device else event.name, ops)
        if owner is not None:
            by_op = device if on_device else host
            by_op[owner] = by_op.get(owner, 0.0) + event.seconds
    calls = {name: sum(seconds) / slowed for name, seconds in _seconds_of_calls(events, ops).items()}
    return calls | host | device


def seconds_by_execution(events: Sequence[Event], ops: Collection[str], *, slowed: float = 1.0) -> dict[str, float]:
    """Mean seconds of an op on the host over all its executions on all devices; arguments as for `seconds_by_op`."""
    durations: dict[str, list[float]] = {}
    for event in events:
        if not event.plane.startswith("/device:") and (owner := owner_of(event.name, ops)) is not None:
            durations.setdefault(owner, []).append(event.seconds)
    calls = {name: statistics.fmean(ends) / slowed for name, ends in _seconds_of_calls(events, ops).items()}
    return calls | {name: statistics.fmean(seconds) for name, seconds in durations.items()}


def _seconds_of_calls(events: Iterable[Event], ops: Collection[str]) -> dict[str, list[float]]:
    """Seconds from the start to the end of each execution of ops that run asynchronously."""
    started: dict[tuple[str, object], int] = {}
    by_op: dict[str, list[float]] = {}
    for event in events:
        name = event.stats.get("name", "")
        call = name, event.stats.get("step_id")
        if event.name == "ExecutorState::ProcessAsync::Start" and name in ops:
            started[call] = event.start
        elif event.name == "ExecutorState::ProcessAsync::Done" and call in started:
            by_op.setdefault(name, []).append((event.start - started.pop(call)) / 1e12)
    return by_op


def kernel_by_op(events: Iterable[Event], ops: Collection[str]) -> dict[str, str]:
    """The op type that ran on the host under each op's name: its own, or that of a kernel that replaced it."""
    named = (event.name.rpartition(":") for event in events if not event.plane.startswith("/device:"))
    return {name: kernel for name, _, kernel in named if name in ops}


def owner_of(name: str, ops: Collection[str]) -> str | None:
    """The op to which an event belongs."""
    name, separator, _ = name.rpartition(":")
    if not separator:
        return None
    while name and name not in ops:
        name = name.rpartition("/")[0]
    return name or None


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
