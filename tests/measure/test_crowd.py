"""Ops timed beside the same ops on other devices."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from partitioner.measure.crowd import Crowding, crowding, slow_down
from partitioner.measure.profiler import Event
from partitioner.measure.step_times import seconds_by_execution


def event(name: str, milliseconds: int, plane: str = "/host:CPU") -> Event:
    return Event(plane=plane, line=0, name=name, start=0, end=milliseconds * 10**9)


def call(name: str, step: int, start: int, end: int) -> list[Event]:
    """A call from its start to its end, in milliseconds."""
    return [
        Event(
            plane="/host:CPU",
            line=0,
            name=f"ExecutorState::ProcessAsync::{moment}",
            start=milliseconds * 10**9,
            end=milliseconds * 10**9,
            stats={"name": name, "step_id": step},
        )
        for moment, milliseconds in (("Start", start), ("Done", end))
    ]


def test_an_execution_takes_the_mean_of_all_on_the_host() -> None:
    events = [event("a:Mul", 1), event("a:Mul", 3), event("loop/body/_7/b:Mul", 5), event("a:Mul", 9, "/device:GPU:0")]
    assert seconds_by_execution(events, {"a", "loop"}) == pytest.approx({"a": 2e-3, "loop": 5e-3})


def test_the_execution_of_a_call_ends_when_it_is_done() -> None:
    """Bug: a call had no seconds beside others, so that a loop in it was slowed down as its kernels are."""
    events = [*call("loop", 1, 0, 3), event("body/Mul", 1), *call("loop", 2, 2, 9)]
    assert seconds_by_execution(events, {"loop"}) == pytest.approx({"loop": 5e-3})


def product(device: str) -> Any:
    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        with tf.device(device):
            return tf.matmul(x, x, name="product")

    function = run.get_concrete_function(tf.TensorSpec([512, 512]))
    value = tf.random.normal([512, 512])
    return lambda: function(value).numpy()


def test_ops_are_timed_alone_and_beside_others() -> None:
    """On shared cores it takes longer beside others; what varies in either may hide that, but not make it half."""
    found = crowding(product("CPU:1"), [product("CPU:2")], {"product", "unknown"}, budget_seconds=1.0)
    assert found.of_op.keys() == {"product"}
    assert found.of_op["product"] > 0.5


def test_threads_end_with_it_and_their_errors_are_told() -> None:
    def broken() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no memory left")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no memory left"):
        crowding(product("CPU:1"), [broken], {"product"}, budget_seconds=0.5)
    assert threading.active_count() == before


def test_ctrl_c_leaves_it_unknown() -> None:
    calls: list[int] = []

    def interrupted() -> None:
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt

    assert crowding(interrupted, [product("CPU:2")], {"product"}, budget_seconds=0.5) == Crowding()


def test_ops_of_devices_that_wait_for_each_other_are_slowed_down_by_that() -> None:
    """Two logical devices share two threads: alone each used both, and a pipeline of 172 ms was predicted at 109."""
    running: list[Any] = []

    def sharing(run: Any) -> Any:
        def waiting() -> None:
            running.append(run)
            run()
            time.sleep(0.02 * len(running))
            running.remove(run)

        return waiting

    found = crowding(
        sharing(product("CPU:1")),
        [sharing(product("CPU:2")), sharing(product("CPU:3"))],
        {"product"},
        budget_seconds=2.0,
    )
    assert found.slow_downs()["product"] > 1.5


def test_a_slow_machine_is_not_taken_for_a_slow_down() -> None:
    """What is timed in turns is compared round by round: both of the second round met a machine half as fast."""
    assert slow_down([1.0, 2.0, 1.0], [1.5, 3.0, 1.5]) == pytest.approx(1.5)
    assert slow_down([1.0, 1.0, 2.0], [1.6, 1.6, 3.2]) == pytest.approx(1.6)
