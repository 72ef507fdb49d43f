"""Which devices make a replica, and what a plan of several says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import pytest
from asking import asked
from keras import layers

import partitioner
from cost_models.catalogue import device_named, link_named
from cost_models.gpu_constants import GPU
from cost_models.topology import Topology, TopologyDevice
from partitioner.errors import InfeasibleError, UsageError
from partitioner.ir.devices import DeviceName, short_name
from partitioner.ir.plan import Strategy
from partitioner.planner.layouts.replicas import replica_groups, within_replica
from partitioner.spelling import argument, as_python
from tests import models

ROWS = 32


def machines(
    count: int, *, hardware: Sequence[str] = ("a100-80gb",), memory_bytes: Sequence[int] = (10**9,)
) -> Topology:
    placed = [
        TopologyDevice(
            name=DeviceName(type="GPU", index=index).canonical,
            device=device_named(hardware[index % len(hardware)]),
            memory_bytes=memory_bytes[index % len(memory_bytes)],
        )
        for index in range(count)
    ]
    return Topology.uniform(placed, link_named("nvlink3"))


def groups(
    strategy: str, replicas: int | str | tuple[int, ...], topology: Topology, microbatches: int | str = "auto"
) -> Any:
    return replica_groups(Strategy(strategy), replicas, topology, batch_size=ROWS, microbatches=microbatches)


@pytest.mark.parametrize(
    ("strategy", "replicas", "expected"),
    [
        ("auto", "auto", ((0, 1, 2, 3),)),
        ("layer-split", "auto", ((0, 1, 2, 3),)),
        ("layer-split", 1, ((0, 1, 2, 3),)),
        ("mirrored", "auto", ((0,), (1,), (2,), (3,))),
        ("mirrored", 4, ((0,), (1,), (2,), (3,))),
        ("mixed", 2, ((0, 1), (2, 3))),
        ("auto", 2, ((0, 1), (2, 3))),
        ("mixed", 1, ((0, 1, 2, 3),)),
    ],
)
def test_devices_are_cut_into_runs(strategy: str, replicas: int | str, expected: Any) -> None:
    assert groups(strategy, replicas, machines(4)) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((3, 1), ((0, 3), (1, 3), (2, 3))),
        ((1, 3), ((0, 1), (0, 2), (0, 3))),
        ((2, 1, 1), ((0, 2, 3), (1, 2, 3))),
        ((2, 2), ((0, 2), (1, 3))),  # none is shared: two stages, each on two devices
    ],
)
def test_replicas_share_devices(sizes: tuple[int, ...], expected: Any) -> None:
    assert groups("mixed", sizes, machines(4)) == expected
    assert groups("auto", sizes, machines(4)) == expected


def test_devices_are_shared_in_turns() -> None:
    assert groups("mixed", (4, 2, 1), machines(7)) == ((0, 4, 6), (1, 5, 6), (2, 4, 6), (3, 5, 6))


@pytest.mark.parametrize(
    ("strategy", "sizes", "message", "help"),
    [
        ("mixed", (3, 2), "replicas 3,2: 3 replicas cannot share 2 devices evenly", "numbers that divide the largest"),
        ("mixed", (2, 1), "replicas 2,1 are on 3 devices, and 5 are given", "as many devices as the numbers add up to"),
        (
            "mirrored",
            (4, 1),
            "the strategy mirrored does not go with replicas 4,1",
            as_python(argument("strategy", "mixed")),
        ),
        ("mixed", (5, 0), "replicas 5,0: every number is at least 1", ""),
    ],
)
def test_sizes_that_cannot_be(strategy: str, sizes: tuple[int, ...], message: str, help: str) -> None:
    with pytest.raises(UsageError) as raised:
        groups(strategy, sizes, machines(5))
    assert raised.value.message == message
    assert help in (raised.value.help or "")


def test_what_is_asked_of_one_replica() -> None:
    assert within_replica(Strategy.MIXED, ((0, 1), (2, 3))) is Strategy.LAYER_SPLIT
    assert within_replica(Strategy.AUTO, ((0,), (1,))) is Strategy.SINGLE
    assert within_replica(Strategy.MIXED, ((0, 1),)) is Strategy.LAYER_SPLIT
    assert within_replica(Strategy.AUTO, ((0, 1),)) is Strategy.AUTO


@pytest.mark.parametrize(
    ("strategy", "replicas", "count", "microbatches", "message"),
    [
        ("mixed", 3, 4, "auto", "4 devices cannot be cut into 3 replicas"),
        ("mixed", 8, 4, "auto", "4 devices cannot be cut into 8 replicas"),
        ("mixed", "auto", 4, "auto", "how many replicas"),
        ("mirrored", 2, 4, "auto", "on each of the 4 devices, not 2 replicas"),
        ("single", 2, 4, "auto", "the strategy single has one replica, not 2"),
        ("layer-split", 4, 4, "auto", "the strategy layer-split has one replica, not 4"),
        ("mixed", 0, 4, "auto", "expected 'auto' or a whole number of at least 1"),
        ("mixed", "two", 4, "auto", "expected 'auto' or a whole number of at least 1"),
        ("mirrored", "auto", ROWS + 1, "auto", f"{ROWS + 1} replicas of a batch of {ROWS} rows"),
        ("mixed", 4, 8, 16, f"4 replicas with 16 microbatches each of a batch of {ROWS} rows"),
    ],
)
def test_what_does_not_go_together_is_refused(
    strategy: str, replicas: Any, count: int, microbatches: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        groups(strategy, replicas, machines(count), microbatches)


def test_devices_with_the_same_stage_must_be_alike() -> None:
    with pytest.raises(UsageError, match=r"GPU:0 and GPU:1 .* not alike") as raised:
        groups("mirrored", "auto", machines(2, hardware=["a100-80gb", "t4"]))
    assert raised.value.notes == ("GPU:0: a100-80gb", "GPU:1: t4")
    alternating = machines(4, hardware=["a100-80gb", "t4"])
    assert groups("mixed", 2, alternating) == ((0, 1), (2, 3))
    with pytest.raises(UsageError, match=r"GPU:0 and GPU:2 .* as much memory") as raised:
        groups("mixed", 2, machines(4, memory_bytes=[2**30, 2**30, 2**29, 2**30]))
    assert raised.value.notes == ("GPU:0: 1.00 GiB", "GPU:2: 0.50 GiB")
    assert raised.value.help == f"{as_python(argument('memory_limit', 2**29))} makes all of them equal"


def wide() -> keras.Model:
    inputs = keras.Input((512,))
    x = layers.Dense(512, use_bias=False, name="wide")(inputs)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, use_bias=False, name="scores")(x)), "sgd")


def planned(**options: Any) -> Any:
    given = {"batch_size": ROWS, "hardware": "a100-80gb", "link": "pcie4", "microbatches": 1, "time_limit": 2}
    return partitioner.plan(wide(), **asked(**given | options))


def test_a_step_takes_what_one_replica_takes_and_the_sums() -> None:
    one = planned(devices="GPU:0", batch_size=ROWS // 2, schedule="gpipe", strategy="single")
    both = planned(devices="GPU:0-1", schedule="gpipe", strategy="mirrored")
    size = 4 * (512 * 512 + 512 * models.CLASSES)
    link = link_named("pcie4")
    exchange = 2 * (link.latency_seconds + size / 2 / link.bandwidth_bytes_per_second / GPU.sum_share)
    assert both.predicted.step_seconds - one.predicted.step_seconds == pytest.approx(exchange, rel=1e-6)
    assert [stage.send_bytes - one.stages[0].send_bytes for stage in both.stages] == [size, size]
    assert both.solver.objective == both.predicted.step_seconds


def test_a_plan_names_every_device_of_every_replica() -> None:
    pins = {"wide": "GPU:0", "scores": "GPU:1"}
    plan = planned(devices="GPU:0-3", strategy="mixed", replicas=2, microbatches=2, pins=pins)
    assert (plan.strategy, plan.num_replicas, plan.num_stages) == (Strategy.MIXED, 2, 2)
    result = [(stage.replica, stage.index, short_name(stage.device)) for stage in plan.stages]
    assert result == [(0, 0, "GPU:0"), (0, 1, "GPU:1"), (1, 0, "GPU:2"), (1, 1, "GPU:3")]
    assert [device.name for device in plan.devices if "GPU" in device.name] == [stage.device for stage in plan.stages]
    assert {short_name(device) for device in plan.placement.values()} <= {"GPU:0", "GPU:1", "CPU:0"}
    assert plan.predicted.peak_bytes.keys() == {stage.device for stage in plan.stages}
    assert [memory.device for memory in plan.memory] == [stage.device for stage in plan.stages]
    (single,) = plan.baselines
    assert single.name == "single-device GPU:0"
    alone = planned(devices="GPU:0", strategy="single")
    assert single.step_seconds == pytest.approx(alone.predicted.step_seconds)
    text = plan.to_text(verbose=True)
    assert "mixed on GPU:0, GPU:1, GPU:2 and GPU:3, 2 replicas, 2 stages" in text
    assert "1, replica 1" in text
    assert "<b>GPU:3</b>, stage 1, replica 1" in plan.to_dot()


def test_sums_need_room() -> None:
    plan = planned(devices="GPU:0-1", strategy="mirrored")
    peak = max(plan.predicted.peak_bytes.values())
    one = planned(devices="GPU:0", batch_size=ROWS // 2, schedule="gpipe", strategy="single")
    assert peak > max(one.predicted.peak_bytes.values())
    with pytest.raises(InfeasibleError) as raised:
        planned(devices="GPU:0-1", strategy="mirrored", memory_limit=peak - 1)
    assert "GPU:0" in str(raised.value)
    assert planned(devices="GPU:0-1", strategy="mirrored", memory_limit=peak).num_replicas == 2


def test_pins_are_to_devices_of_the_first_replica() -> None:
    with pytest.raises(UsageError, match="requirements") as raised:
        planned(devices="GPU:0-3", strategy="mixed", replicas=2, pins={"wide": "GPU:3"})
    assert "GPU:3 is not among the devices (GPU:0, GPU:1)" in raised.value.notes[0]
