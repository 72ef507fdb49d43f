"""Which event belongs to which op, and what a step that runs is found to take."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from partitioner.errors import UsageError
from partitioner.measure.profiler import Event, events_of
from partitioner.measure.step_times import (
    LEAST_RUNS,
    LEAST_WARMUPS,
    MOMENTS,
    MOST_WARMUPS,
    faster_half,
    refuse_missing_device_plane,
    seconds_by_op,
    seconds_in_turns,
    time_step,
)


def event(name: str, seconds: float, plane: str = "/host:CPU", **stats: Any) -> Event:
    return Event(plane=plane, line=0, name=name, start=0, end=round(seconds * 1e12), stats=stats)


def test_events_belong_to_the_op_they_name() -> None:
    events = [event("dense/MatMul:_MklMatMul", 2.0), event("dense/MatMul:MatMul", 1.0), event("other:Relu", 5.0)]
    assert seconds_by_op(events, {"dense/MatMul", "idle"}) == {"dense/MatMul": 3.0}


def test_what_runs_in_a_loop_belongs_to_the_loop() -> None:
    events = [event("lstm/while/body/_3/lstm/while/MatMul:MatMul", 1.0), event("lstm/while:While", 0.5)]
    assert seconds_by_op(events, {"lstm/while", "MatMul"}) == {"lstm/while": 1.5}


def test_what_is_no_op_counts_nowhere() -> None:
    assert seconds_by_op([event("ExecutorState::Process", 1.0), event("dense", 1.0)], {"dense"}) == {}


def test_kernels_of_a_gpu_count_in_place_of_their_launch() -> None:
    events = [
        event("a:MatMul", 0.1),
        event("b:Shape", 0.2),
        event("gemm_128x64", 1.0, "/device:GPU:0", tf_op="a:MatMul"),
        event("epilogue", 0.5, "/device:GPU:0", tf_op="a:MatMul"),
    ]
    assert seconds_by_op(events, {"a", "b"}) == {"a": 1.5, "b": 0.2}


def profile(folder: Path, *planes: str) -> list[Event]:
    """What is read of a file in which each plane has an op of 2 ms: on the host by its name, on a GPU by its kernel."""
    space = xplane_pb2.XSpace()
    for name in planes:
        plane = space.planes.add(name=name)
        plane.stat_metadata[1].name = "tf_op"
        plane.stat_metadata[2].name = "dense/MatMul:MatMul"
        plane.event_metadata[1].name = "sgemm_128x64" if "GPU" in name else "dense/MatMul:MatMul"
        event = plane.lines.add(timestamp_ns=5).events.add(metadata_id=1, offset_ps=7, duration_ps=2 * 10**9)
        if "GPU" in name:
            event.stats.add(metadata_id=1, ref_value=2)
    path = folder / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return list(events_of(path))


def test_a_profile_of_a_gpu_is_read_by_its_kernels(tmp_path: Path) -> None:
    events = profile(tmp_path, "/host:CPU", "/device:GPU:0")
    refuse_missing_device_plane(events, "GPU")
    assert [event.start for event in events] == [5007, 5007]
    assert seconds_by_op(events, {"dense/MatMul"}) == {"dense/MatMul": 0.002}


def test_without_a_plane_of_the_gpu_measuring_is_refused(tmp_path: Path) -> None:
    """Bug: where the driver keeps counters to administrators, the time to start a kernel was taken for the kernel's."""
    events = profile(tmp_path, "/host:CPU")
    refuse_missing_device_plane(events, "CPU")
    with pytest.raises(UsageError, match="recorded no kernel of a GPU") as raised:
        refuse_missing_device_plane(events, "GPU")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in (raised.value.help or "")


def test_calls_are_rid_of_what_the_profiler_slows_them_down() -> None:
    def at(name: str, seconds: float) -> Event:
        moment = round(seconds * 1e12)
        return Event(plane="/host:CPU", line=0, name=name, start=moment, end=moment, stats={"name": "loop"})

    events = [at("ExecutorState::ProcessAsync::Start", 1.0), at("ExecutorState::ProcessAsync::Done", 4.0)]
    assert seconds_by_op([*events, event("a:MatMul", 2.0)], {"loop", "a"}, slowed=1.5) == {"loop": 2.0, "a": 2.0}


def test_a_step_is_warm_once_two_runs_take_alike() -> None:
    naps = iter([0.05, 0.02, *[0.01] * 200])
    taken: list[float] = []

    def run() -> None:
        taken.append(next(naps))
        time.sleep(taken[-1])

    times = time_step(run, set(), budget_seconds=0.1)
    assert taken[2:4] == [0.01, 0.01]
    assert 0.009 < times.step_seconds < 0.02


def test_what_xla_compiled_took_until_it_was_done() -> None:
    """Bug: a grouped convolution of Keras, which XLA compiles, was taken to have been folded away."""
    compiled = tf.function(lambda x: tf.matmul(x, x) @ x, autograph=False, jit_compile=True)

    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        found = compiled(x)
        for _ in range(4):
            found = tf.matmul(found, x, name="after")
        return tf.reduce_sum(found)

    function = run.get_concrete_function(tf.TensorSpec([512, 512]))
    (call,) = (op.name for op in function.graph.get_operations() if "PartitionedCall" in op.type)
    value = tf.random.normal([512, 512]) / 512
    times = time_step(lambda: function(value).numpy(), {call, "after"}, budget_seconds=0.5)
    assert times.op_seconds["after"] / 4 < times.op_seconds[call] < 2 * times.step_seconds


def products() -> Any:
    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        large = tf.matmul(x, x, name="large")
        return tf.matmul(large[:32, :32], large[:32, :32], name="small")

    function = run.get_concrete_function(tf.TensorSpec([512, 512]))
    value = tf.random.normal([512, 512])
    return lambda: function(value).numpy()


def test_a_step_is_timed_op_by_op() -> None:
    times = time_step(products(), {"large", "small"}, budget_seconds=0.5)
    assert times.num_runs >= LEAST_RUNS
    assert 0 < times.op_seconds["small"] < times.op_seconds["large"]
    assert sum(times.op_seconds.values()) < 3 * times.step_seconds


@pytest.mark.parametrize("runs_before", [1, MOST_WARMUPS + 9])
def test_ctrl_c_keeps_what_was_measured(runs_before: int) -> None:
    run, calls = products(), []

    def interrupted() -> None:
        calls.append(run())
        if len(calls) > runs_before:
            raise KeyboardInterrupt

    if runs_before == 1:
        with pytest.raises(KeyboardInterrupt):
            time_step(interrupted, {"large", "small"})
    else:
        times = time_step(interrupted, {"large", "small"})
        assert 3 <= times.num_runs <= (MOST_WARMUPS + 9 - LEAST_WARMUPS) / 3
        assert times.op_seconds["large"] > 0


def test_steps_take_turns() -> None:
    """A short step was timed in one moment; where the machine was slower then, all of its ops were."""
    ran: list[str] = []

    def run(name: str, seconds: float) -> None:
        time.sleep(seconds)
        ran.append(name)

    short, long = seconds_in_turns([lambda: run("a", 0.001), lambda: run("b", 0.01)])
    assert [name for name, _ in groupby(ran)] == ["a", "b"] * MOMENTS
    assert 0.001 <= short < 0.01 <= long < 0.1


def test_runs_that_other_work_slowed_down_do_not_count() -> None:
    assert faster_half("abcde", [3.0, 9.0, 1.0, 8.0, 2.0]) == ["c", "e", "a"]
    assert faster_half(["only"], [1.0]) == ["only"]
