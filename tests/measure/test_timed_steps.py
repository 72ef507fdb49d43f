"""Short steps, timed in moments of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from partitioner.measure.crowd import Crowding
from partitioner.measure.step_times import StepTimes
from partitioner.measure.timed_steps import SHORT_SECONDS, Measurable, TimedStep, timed_warm
from tests.graphs import chain


def timed(step_seconds: float, run: Callable[[], object], *others: Callable[[], object]) -> TimedStep:
    return TimedStep(
        step=Measurable(costed=chain([1.0], [256]).costed(), run=run, others=others),
        times=StepTimes(step_seconds=step_seconds, op_seconds={"op0": 0.005}, num_runs=3),
        alone={"op0": 0.005},
    )


def test_short_steps_are_timed_warm() -> None:
    """They took longer between profiles; a step that takes longer than a moment is not run again."""
    cold = timed(0.01, lambda: time.sleep(0.001))
    long = timed(SHORT_SECONDS, lambda: pytest.fail("it ran"))
    short, untouched = timed_warm([cold, long])
    assert 0.001 <= short.times.step_seconds < 0.005
    assert short == replace(cold, times=replace(cold.times, step_seconds=short.times.step_seconds))
    assert untouched == long


def test_short_steps_are_timed_beside_others_too() -> None:
    """Bug: both were timed once each, in a quarter of a second; where the machine was slower for one of them, replicas
    of a step of 3 ms were predicted to take from 4.9 to 7.4 ms."""
    is_beside = threading.Event()

    def other() -> None:
        is_beside.set()
        time.sleep(0.001)
        is_beside.clear()

    cold = timed(0.01, lambda: time.sleep(0.003 if is_beside.is_set() else 0.001), other)
    (short,) = timed_warm([replace(cold, crowded=Crowding(of_op={"op0": 1.5}, of_ops=1.5))])
    assert short.times.step_seconds < 0.002
    assert 2.0 < short.crowded.of_step < 4.0
    assert short.crowded.slow_downs()["op0"] == pytest.approx(short.crowded.of_step)


def test_ctrl_c_leaves_the_times_of_short_steps() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    cold = timed(0.01, interrupted)
    assert timed_warm([cold]) == [cold]
