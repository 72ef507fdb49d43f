"""Measure the ops of a step on a device, in the format of the cost models."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from cost_models.measured import MeasuredDevice, MeasuredOp, signature
from partitioner.deadline import SHARE_OF_CROWD
from partitioner.ir.costed import CostedGraph
from partitioner.measure.crowd import crowding
from partitioner.measure.fused import ops_of_kernels, shared_seconds
from partitioner.measure.step_times import StepTimes, time_step
from partitioner.measure.timed_steps import Measurable, TimedStep, timed_warm


def measure_device(
    steps: Sequence[Measurable],
    device: MeasuredDevice,
    *,
    budget_seconds: float,
    on_progress: Callable[[float], object] = lambda _: None,
) -> MeasuredDevice:
    """A device's costs with the measured times of the steps' ops.

    The overhead is the time of the fastest step minus the time of its ops, per op that does work: the less they take,
    the better their difference is known. Then ops count as much as makes each step take what it took: a CPU may run
    several at once, and the profiler slows them down.

    Args:
        steps: The step of the plan first, then the same at other batch sizes, then other steps of these devices.
        device: The costs so far.
        budget_seconds: Seconds for all steps together.
        on_progress: Called with the fraction done.
    """
    timed: list[TimedStep] = []
    for number, step in enumerate(steps):
        budget = budget_seconds / len(steps)
        times = time_step(
            step.run,
            step.names,
            device_type=device.type,
            budget_seconds=(1 - SHARE_OF_CROWD) * budget if step.others else budget,
            on_progress=lambda done, number=number: on_progress((number + done) / len(steps)),
        )
        crowded = crowding(step.run, step.others, step.names, budget_seconds=SHARE_OF_CROWD * budget)
        timed.append(TimedStep(step=step, times=times, alone=seconds_by_name(step, times), crowded=crowded))
    timed = timed_warm(timed)
    overhead = overhead_seconds(timed)
    ops: dict[str, MeasuredOp] = {}
    for one in timed:
        ratios = crowding_by_name(one.step, one.times, one.crowded.slow_downs())
        ops |= measured_ops(one.step.costed, one.adding_up(overhead), ratios, one.times.num_runs)
    crowd = 1 + max(len(step.others) for step in steps)
    return device.merged(replace(device, overhead_seconds=overhead, ops=ops, crowd=crowd))


def overhead_seconds(steps: Iterable[TimedStep]) -> float:
    """Seconds of the fastest step besides its ops, per op that does work."""
    fastest = min((one for one in steps if one.step.is_of_model), key=lambda one: one.times.step_seconds)
    left = fastest.times.step_seconds - sum(fastest.alone.values())
    return max(left, 0.0) / max(fastest.num_working, 1)


def seconds_by_name(step: Measurable, times: StepTimes) -> dict[str, float]:
    """Seconds by op; those of a fused kernel and of a call are shared out among the ops in it."""
    found = shared_seconds(step.costed, *_without_calls(step, times))
    costs = {op.name: row[0] for op, row in zip(step.costed.graph.ops, step.costed.seconds, strict=True)}
    for call, names in step.calls.items():
        inside = {name: costs[name] for name in names if name in costs}
        total = sum(inside.values())
        if call in times.op_seconds and total:
            found |= {name: times.op_seconds[call] * cost / total for name, cost in inside.items()}
    return found


def crowding_by_name(step: Measurable, times: StepTimes, ratios: Mapping[str, float]) -> dict[str, float]:
    """Slow-down by op; ops of a fused kernel have its own, and those in a call that of the call, which also waits."""
    kernels = ops_of_kernels(step.costed, *_without_calls(step, times))
    in_kernels = {op: ratios[name] for name, ops in kernels.items() if name in ratios for op in ops}
    in_calls = {op: ratios[call] for call, ops in step.calls.items() if call in ratios for op in ops}
    return {**ratios, **in_kernels, **in_calls}


def _without_calls(step: Measurable, times: StepTimes) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds and kernels of what ran, less those of calls."""
    seconds = {name: seconds for name, seconds in times.op_seconds.items() if name not in step.calls}
    return seconds, {name: kernel for name, kernel in times.kernels.items() if name not in step.calls}


def measured_ops(
    costed: CostedGraph, alone: Mapping[str, float], ratios: Mapping[str, float], num_runs: int
) -> dict[str, MeasuredOp]:
    """By signature, the mean over the ops that have it, so that they still add up; TensorFlow may have folded some."""
    by_signature: dict[str, list[tuple[float, float | None]]] = {}
    first: dict[str, MeasuredOp] = {}
    for op, spec, cost in zip(costed.graph.ops, costed.graph.specs, costed.costs, strict=True):
        key = signature(spec)
        by_signature.setdefault(key, []).append((alone.get(op.name, 0.0), ratios.get(op.name)))
        first.setdefault(
            key,
            MeasuredOp(
                type=op.type,
                dtype=spec.compute_dtype,
                flops=cost.flops,
                moved_bytes=cost.moved_bytes,
                seconds=0.0,
                num_runs=num_runs,
            ),
        )
    means = {key: statistics.fmean(seconds for seconds, _ in found) for key, found in by_signature.items()}
    return {
        key: replace(first[key], seconds=mean, crowded_seconds=mean * _slow_down(by_signature[key]))
        for key, mean in means.items()
    }


def _slow_down(found: Iterable[tuple[float, float | None]]) -> float:
    """By how much ops are slowed down all together, from their seconds and what is known of each; 0 if nothing is."""
    known = [(seconds, ratio) for seconds, ratio in found if ratio is not None]
    alone = sum(seconds for seconds, _ in known)
    return sum(seconds * ratio for seconds, ratio in known) / alone if alone else 0.0
