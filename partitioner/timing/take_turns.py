"""The benchmark: contenders are built one after the other, and then take turns, round by round."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from partitioner.emit.cluster.runtime import forget_peaks, num_cores, peak_bytes
from partitioner.errors import CheckError, PartitionError
from partitioner.ir.plan import PlanDocument
from partitioner.spelling import argument
from partitioner.timing.busy_loops import BusyLoops, busy_loops
from partitioner.timing.contenders import (
    MIRRORED,
    ONE_DEVICE,
    PLAN,
    NotComparedError,
    Ready,
    Subject,
    as_planned,
    mirrored,
    on_one_device,
)
from partitioner.timing.result import Benchmark, Contender, DevicePeak
from partitioner.verification.reference import restored

_WARMUP_STEPS = 3
OnProgress = Callable[[str], object]


@dataclass(slots=True, kw_only=True)
class _Turns:
    """A contender and its turns so far; `reason` is why it stopped or never ran."""

    name: str
    ready: Ready | None = None
    seconds: list[float] = field(default_factory=list)
    reason: str = ""


def run_benchmark(
    subject: Subject, *, num_steps: int, num_rounds: int, is_alone: bool, on_progress: OnProgress
) -> Benchmark:
    """Time steps of a placed model; variables and optimizer are unchanged when it returns.

    Args:
        subject: The placed model, and how others are built.
        num_steps: Steps of each contender in a round.
        num_rounds: Rounds, in each of which every contender has a turn.
        is_alone: Whether to time the placed model only.
        on_progress: Called with what is done next.

    Raises:
        CheckError: A device ran out of memory in a step of the placed model.
        UsageError: The model that is built anew is another model.
    """
    plan, placed = subject.plan, subject.placed
    optimizer = placed.optimizer.variables if placed.optimizer is not None else []
    held = [*subject.model.variables, *optimizer, *subject.step.variables.values()]
    devices = subject.ran_on
    try:
        with restored(list({id(variable): variable for variable in held}.values())):
            on_progress("warming up the placed model")
            forget_peaks(devices.values())
            first = _Turns(name=PLAN, ready=_warm(as_planned(subject), num_steps))
            memory = tuple(_peaks(plan, devices))
            others = [] if is_alone else list(_others(subject, on_progress))
            on_progress(f"{num_rounds} rounds")
            with busy_loops(min(num_cores(), len(set(devices.values())))) as loops:
                _take_turns([first, *others], loops, num_steps, num_rounds)
            placed.reset_metrics()
    except tf.errors.ResourceExhaustedError as error:
        raise CheckError(
            "a device ran out of memory in a step of the placed model",
            notes=[error.message.strip().splitlines()[0]],
            help=f"plan with a smaller {argument('memory_limit')}, or time it without others: {argument('alone')}",
        ) from error
    return Benchmark(
        model=plan.model.name,
        fingerprint=plan.model.fingerprint,
        batch_size=plan.model.batch_size,
        training=plan.model.training,
        devices=devices,
        contenders=tuple(_contender(turns, loops) for turns in [first, *others]),
        memory=memory,
        num_steps=num_steps,
        num_loops=len(loops.processes),
        cores=loops.cores,
        disturbed_rounds=loops.disturbed,
        versions={"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__},
    )


def _others(subject: Subject, on_progress: OnProgress) -> Iterator[_Turns]:
    """The other contenders; whatever keeps one from running is a reason, not an error."""
    for name, build in ((ONE_DEVICE, on_one_device), (MIRRORED, mirrored)):
        on_progress(f"warming up {name}")
        try:
            yield _Turns(name=name, ready=_warm(build(subject), 1))
        except NotComparedError as reason:
            yield _Turns(name=name, reason=str(reason))
        except PartitionError:
            raise
        except Exception as error:  # whatever Keras and TensorFlow raise
            yield _Turns(name=name, reason=_failed(error))


def _warm(ready: Ready, num_steps: int) -> Ready:
    for _ in range(_WARMUP_STEPS + num_steps):
        ready.run()
    return ready


def _take_turns(contenders: Sequence[_Turns], loops: BusyLoops, num_steps: int, num_rounds: int) -> None:
    """In each round all have a turn, each round another one first; a contender that fails has no more turns."""
    for number in range(num_rounds):
        loops.run()
        start = number % len(contenders)
        for turns in [*contenders[start:], *contenders[:start]]:
            if turns.ready is None or turns.reason:
                continue
            try:
                turns.seconds.append(_median_seconds(turns.ready, num_steps))
            except tf.errors.OpError as error:
                if turns.name == PLAN:
                    raise
                turns.reason = _failed(error)


def _median_seconds(ready: Ready, num_steps: int) -> float:
    seconds = []
    for _ in range(num_steps):
        start = time.perf_counter()
        ready.run()
        seconds.append((time.perf_counter() - start) / ready.num_steps)
    return statistics.median(seconds)


def _failed(error: Exception) -> str:
    is_memory = isinstance(error, tf.errors.ResourceExhaustedError)
    what = "ran out of memory beside the placed model" if is_memory else f"failed with {type(error).__name__}"
    return ": ".join([what, *str(error).strip().splitlines()[:1]])


def _peaks(plan: PlanDocument, devices: dict[str, str]) -> Iterator[DevicePeak]:
    for name, ran in devices.items():
        predicted = plan.predicted.peak_bytes.get(name, 0)
        yield DevicePeak(device=name, predicted_bytes=predicted, measured_bytes=peak_bytes(ran))


def _contender(turns: _Turns, loops: BusyLoops) -> Contender:
    rounds = range(len(turns.seconds))
    counted = [number for number in rounds if number not in loops.disturbed] or list(rounds)
    return Contender(
        name=turns.name,
        devices=turns.ready.devices if turns.ready else (),
        predicted_seconds=turns.ready.predicted_seconds if turns.ready else None,
        round_seconds=tuple(turns.seconds),
        median_seconds=statistics.median(turns.seconds[number] for number in counted) if counted else None,
        reason=turns.reason,
    )
