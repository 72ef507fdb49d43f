"""Run steps of a placed model: how long one takes, and what each device does meanwhile."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from partitioner.emit.graph.rewriting import as_allowed
from partitioner.errors import UsageError
from partitioner.ir.execution import Execution
from partitioner.ir.plan import MeasuredStep, PlannedAction, Updates
from partitioner.ir.stage_programs import StageProgram
from partitioner.ir.step import CapturedStep
from partitioner.measure.profiler import Event, profiled
from partitioner.measure.step_times import owner_of, warm_up
from partitioner.stages.actions import KIND_OF_CALLS, UPDATE, Action
from partitioner.stages.bars import Run, bars_of_runs
from partitioner.stages.programs import stage_programs
from partitioner.verification.data import random_batches
from partitioner.verification.reference import restored

_STEPS, _LEAST_STEPS, _BUDGET_SECONDS = 9, 3, 10.0
_PICOSECONDS = 1e-12


def measure_placed_step(placed: Any, *, seed: int = 0) -> MeasuredStep:
    """Run steps of a placed model on random data; variables and optimizer are unchanged when it returns.

    Steps run until they are warm, then up to nine times in up to ten seconds, and once under the profiler.

    Args:
        placed: The placed model, with synchronous updates.
        seed: Seed of the data.

    Raises:
        UsageError: Its replicas update asynchronously: they have no step in common.
    """
    program = placed.program
    if placed.plan.updates == Updates.ASYNC:
        raise UsageError("asynchronous replicas have no step in common that could be measured")
    kind, specs = program.signatures()[0]
    step = program.step(kind, specs)
    function, execution = program.function(kind, specs), program.execution(step)
    (batch,) = random_batches(specs, step.graph.batch_size, 1, seed)

    def run() -> None:
        with as_allowed(is_staged=execution.is_staged):
            for value in tf.nest.flatten(function(*batch)):
                if value is not None:
                    value.numpy()  # returns once the step has ended

    variables = [copy for copies in program.copies().values() for copy in copies]
    with restored(variables):
        warm_up(run)
        seconds = _timed(run)
        events = profiled(run)
    planned = {actual: name for name, actual in program.devices.items()}
    if execution.is_staged:
        bars = _staged_bars(events, step, execution)
    else:
        stage_of = {program.devices[stage.device]: stage.index for stage in placed.plan.stages}
        bars = _bars(events, step, execution, stage_of)
    return MeasuredStep(
        step_seconds=statistics.median(seconds),
        num_steps=len(seconds),
        ran_on=dict(program.devices),
        timeline=_from_zero(bars, planned),
    )


def _timed(run: Callable[[], None]) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < _STEPS and (len(seconds) < _LEAST_STEPS or sum(seconds) < _BUDGET_SECONDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


Span = tuple[float, float]
"""Start and end on the profiler's clock, in seconds."""


def _bars(
    events: Iterable[Event], step: CapturedStep, execution: Execution, stage_of: Mapping[str, int]
) -> Iterator[PlannedAction]:
    """What devices do in a step that runs as one graph."""
    runs: dict[str, list[Run]] = {device: [] for device in stage_of}
    starts, ends = [], []
    for name, (start, end) in _spans_of_ops(events, execution.placement):
        starts.append(start)
        ends.append(end)
        if (device := execution.placement[name]) in runs:
            runs[device].append((step.graph.op[name].phase, start, end))
    seconds = max(ends, default=0.0) - min(starts, default=0.0)
    for device, stage in stage_of.items():
        yield from bars_of_runs(runs[device], device=device, stage=stage, step_seconds=seconds)


def _staged_bars(events: Iterable[Event], step: CapturedStep, execution: Execution) -> Iterator[PlannedAction]:
    """What devices do in a step of stage programs: a bar for every call.

    The profiler names ops, not calls. Each stage works on its microbatches in order, so that the n-th time an op runs
    is for microbatch n. Ops of several programs say nothing, as they run several times for a microbatch.
    """
    programs = stage_programs(step, execution, results=step.results)
    called = [*programs.repeated, *programs.update]
    times = Counter(name for program in called for name in program.ops)
    runs: dict[str, list[Span]] = defaultdict(list)
    for name, span in _spans_of_ops(events, times):
        runs[name].append(span)
    bars = []
    for program in called:
        own = [runs[name] for name in program.ops if times[name] == 1]
        bars += _calls(program, own, execution.num_microbatches)
    yield from _one_after_the_other(bars)


def _calls(program: StageProgram, runs: Sequence[Sequence[Span]], num_microbatches: int) -> Iterator[PlannedAction]:
    """The calls of a program, each from the start of its first op to the end of its last."""
    kind = KIND_OF_CALLS.get(program.kind)
    count = num_microbatches if kind else 1
    of_calls = [spans for spans in runs if len(spans) == count]
    for number in range(count if of_calls else 0):
        start, end = min(spans[number][0] for spans in of_calls), max(spans[number][1] for spans in of_calls)
        action = str(Action(program.stage, kind, number)) if kind else UPDATE
        yield PlannedAction(action=action, device=program.device, start_seconds=start, end_seconds=end)


def _one_after_the_other(bars: Iterable[PlannedAction]) -> Iterator[PlannedAction]:
    """The bars of each device, cut off where the next begins, without those that lie within another."""
    last: dict[str, float] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start_seconds, bar.end_seconds)):
        start = max(bar.start_seconds, last.get(bar.device, bar.start_seconds))
        if bar.end_seconds > start:
            yield PlannedAction(action=bar.action, device=bar.device, start_seconds=start, end_seconds=bar.end_seconds)
            last[bar.device] = bar.end_seconds


def _spans_of_ops(events: Iterable[Event], ops: Mapping[str, Any]) -> list[tuple[str, Span]]:
    """Ops and when they ran, by start: on a GPU where the profiler recorded its kernels, else on the host."""
    found: dict[bool, list[tuple[str, Span]]] = {True: [], False: []}
    for event in events:
        on_device = event.plane.startswith("/device:")
        name = owner_of(str(event.stats.get("tf_op", "")) if on_device else event.name, ops)
        if name is not None:
            found[on_device].append((name, (event.start * _PICOSECONDS, event.end * _PICOSECONDS)))
    on_devices = {name for name, _ in found[True]}
    spans = found[True] + [(name, span) for name, span in found[False] if name not in on_devices]
    return sorted(spans, key=lambda span: span[1])


def _from_zero(bars: Iterable[PlannedAction], planned: Mapping[str, str]) -> tuple[PlannedAction, ...]:
    """The bars in seconds from the start of the step, on planned devices."""
    ordered = sorted(bars, key=lambda bar: (bar.start_seconds, bar.device))
    zero = ordered[0].start_seconds if ordered else 0.0
    return tuple(
        PlannedAction(
            action=bar.action,
            device=planned.get(bar.device, bar.device),
            start_seconds=bar.start_seconds - zero,
            end_seconds=bar.end_seconds - zero,
        )
        for bar in ordered
    )
