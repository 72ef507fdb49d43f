"""Measure the ops of a step on a device, in the format of the cost models."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cost_models.measured import MeasuredDevice, MeasuredOp, signature
from partitioner.deadline import SHARE_OF_CROWD
from partitioner.ir.costed import CostedGraph
from partitioner.measure.crowd import crowding
from partitioner.measure.fused import shared_seconds
from partitioner.measure.step_times import StepTimes, time_step


@dataclass(frozen=True, kw_only=True)
class Measurable:
    """A step that can be run.

    Attributes:
        costed: Its op graph with costs, for the batch size of the runs.
        run: Runs it to its end on the device to be measured.
        others: Run it on the other devices of the host, with variables of their own.
    """

    costed: CostedGraph
    run: Callable[[], Any]
    others: Sequence[Callable[[], Any]] = ()


def measure_device(
    steps: Sequence[Measurable],
    device: MeasuredDevice,
    *,
    budget_seconds: float,
    on_progress: Callable[[float], object] = lambda _: None,
) -> MeasuredDevice:
    """A device's costs with the measured times of the steps' ops.

    The overhead is the time of the first step minus the time of its ops, per op that does work.

    Args:
        steps: The step of the plan first, then the same at other batch sizes.
        device: The costs so far.
        budget_seconds: Seconds for all steps together.
        on_progress: Called with the fraction done.
    """
    overhead = device.overhead_seconds
    ops: dict[str, MeasuredOp] = {}
    for number, step in enumerate(steps):
        budget = budget_seconds / len(steps)
        times = time_step(
            step.run,
            step.costed.graph.op,
            device_type=device.type,
            budget_seconds=(1 - SHARE_OF_CROWD) * budget if step.others else budget,
            on_progress=lambda done, number=number: on_progress((number + done) / len(steps)),
        )
        if number == 0:
            overhead = _overhead_seconds(step.costed, times)
        crowded = (
            crowding(step.run, step.others, step.costed.graph.op, budget_seconds=SHARE_OF_CROWD * budget)
            if step.others
            else {}
        )
        ops |= _measured_ops(step, times, crowded)
    crowd = 1 + max(len(step.others) for step in steps)
    return device.merged(replace(device, overhead_seconds=overhead, ops=ops, crowd=crowd))


def _overhead_seconds(costed: CostedGraph, times: StepTimes) -> float:
    working = sum(cost.flops > 0 or cost.moved_bytes > 0 for cost in costed.costs)
    return max(times.step_seconds - sum(times.op_seconds.values()), 0.0) / max(working, 1)


def _measured_ops(step: Measurable, times: StepTimes, crowded: Mapping[str, float]) -> dict[str, MeasuredOp]:
    """By signature, the median over the ops that have it and ran; 0 if TensorFlow folded all of them away."""
    op_seconds = shared_seconds(step.costed, times.op_seconds, times.kernels)
    by_signature: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    first: dict[str, MeasuredOp] = {}
    for op, spec, cost in zip(step.costed.graph.ops, step.costed.graph.specs, step.costed.costs, strict=True):
        key = signature(spec)
        seconds = by_signature.setdefault(key, [])
        if op.name in op_seconds:
            seconds.append(op_seconds[op.name])
            if op.name in crowded:
                beside.setdefault(key, []).append(op_seconds[op.name] * crowded[op.name])
        first.setdefault(
            key,
            MeasuredOp(
                type=op.type,
                dtype=spec.compute_dtype,
                flops=cost.flops,
                moved_bytes=cost.moved_bytes,
                seconds=0.0,
                num_runs=times.num_runs,
            ),
        )
    return {
        key: replace(
            first[key],
            seconds=statistics.median(seconds or [0.0]),
            crowded_seconds=statistics.median(beside.get(key, [0.0])),
        )
        for key, seconds in by_signature.items()
    }
