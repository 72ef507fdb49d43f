"""Which changes are tried against what limits a plan: the arguments that change, most promising first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partitioner.ir.plan import (
    Baseline,
    DeviceInfo,
    DeviceMemory,
    LinkInfo,
    ModelInfo,
    Origin,
    PlanDocument,
    Predicted,
    SolverInfo,
    Stage,
    Strategy,
)
from partitioner.moves.candidates import MOST_CANDIDATES, candidates
from partitioner.moves.machines import other_links

GPUS = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(2)]
GIVEN = {"devices": "GPU:0-1", "hardware": "a100-40gb"}


def plan(busy: tuple[float, float], request: dict[str, Any], *, baselines: tuple[Baseline, ...] = ()) -> PlanDocument:
    """Two stages in a step of 10 ms, in which each device is busy for so many milliseconds."""
    stages = tuple(
        Stage(
            index=index,
            replica=0,
            device=device,
            layers=(f"layer_{index}",),
            num_ops=1,
            parameter_bytes=0,
            peak_bytes=1 << 30,
            compute_seconds=seconds * 1e-3,
            send_bytes=0,
        )
        for index, (device, seconds) in enumerate(zip(GPUS, busy, strict=True))
    )
    use = DeviceMemory(
        device=GPUS[0],
        peak_seconds=0.0,
        parameter_bytes=1 << 28,
        slot_bytes=1 << 29,
        state_bytes=0,
        gradient_bytes=1 << 28,
        activation_bytes=0,
        headroom_bytes=0,
        reserved_bytes=0,
    )
    return PlanDocument(
        model=ModelInfo(
            source="m.py", name="m", fingerprint="", num_ops=2, num_parameters=0, batch_size=32, training=True
        ),
        devices=tuple(
            DeviceInfo(name=name, hardware="a100-40gb", origin=Origin.CATALOGUE, memory_bytes=1 << 30) for name in GPUS
        ),
        strategy=Strategy.LAYER_SPLIT,
        num_replicas=1,
        num_stages=2,
        num_microbatches=1,
        schedule="sequential",
        updates="sync",
        stages=stages,
        placement={},
        predicted=Predicted(
            step_seconds=1e-2,
            latency_seconds=1e-2,
            bottleneck_stage=0,
            bubble_fraction=1 - sum(busy) / 20,
            peak_bytes=dict.fromkeys(GPUS, 1 << 30),
        ),
        baselines=baselines,
        solver=SolverInfo(status="optimal", objective=0, lower_bound=0, gap=0, seconds=0, seed=0),
        memory=(use,),
        links=(
            LinkInfo(name="pcie4", origin=Origin.ASSUMED, latency_seconds=0.0, bandwidth_bytes_per_second=31.508e9),
        ),
        request=request,
    )


def changes(plan: PlanDocument) -> list[dict[str, Any]]:
    """The arguments that each candidate changes; None for one that it takes out."""
    names = [{*plan.request, *one.request} for one in candidates(plan)]
    return [
        {name: one.request.get(name) for name in of if one.request.get(name) != plan.request.get(name)}
        for one, of in zip(candidates(plan), names, strict=True)
    ]


def test_against_compute_more_and_faster_devices() -> None:
    tried = changes(plan((9.5, 9.5), GIVEN))
    assert tried[:2] == [{"devices": "GPU:0-2"}, {"devices": "GPU:0-3"}]
    # The other A100 has more memory and the same arithmetic; of those with more arithmetic, this one has the least.
    assert tried[2:] == [{"hardware": "h100-pcie"}, {"hardware": "a100-80gb"}]


def test_against_the_bubble_what_the_request_fixes() -> None:
    request = {**GIVEN, "strategy": "layer-split", "microbatches": 4}
    tried = changes(plan((5, 5), request))
    assert tried[:5] == [
        {"microbatches": 8},
        {"microbatches": 16},
        {"strategy": None, "microbatches": None},
        {"strategy": None},
        {"microbatches": None},
    ]


def test_microbatches_have_a_row_each() -> None:
    tried = changes(plan((5, 5), {**GIVEN, "microbatches": 16}))
    assert {"microbatches": 32} in tried
    assert {"microbatches": 64} not in tried


def test_against_imbalance_pins() -> None:
    tried = changes(plan((9, 1), {**GIVEN, "pins": {"layer_0": "GPU:0"}}))
    assert tried[0] == {"pins": None}


def test_against_memory_higher_limits_and_fewer_slots() -> None:
    small = Baseline(name="single-device", step_seconds=5e-3, fits=False)
    tried = changes(plan((5, 5), {**GIVEN, "memory_limit": "8GiB"}, baselines=(small,)))
    assert tried[:4] == [
        {"memory_limit": "10240MiB"},
        {"memory_limit": "12288MiB"},
        {"memory_limit": "16384MiB"},
        {"memory_limit": None},
    ]
    tried = changes(plan((5, 5), {"devices": "GPU:0-1", "hardware": "a100-80gb"}, baselines=(small,)))
    assert {"optimizer": "sgd"} in tried


def test_against_memory_what_is_computed_again_is_left_to_the_planner_before_machines_are() -> None:
    small = Baseline(name="single-device", step_seconds=5e-3, fits=False)
    tried = changes(plan((5, 5), {**GIVEN, "recompute": "none"}, baselines=(small,)))
    assert tried[0] == {"recompute": None}


def test_faster_links_are_much_faster_than_the_one_before() -> None:
    """Of 31.5 GB/s, 1.5 times is 47.3: the NVLink bridge has 56.25, and NVLink 2 has 150."""
    linked = plan((5, 5), GIVEN)
    assert [change["link"] for _, change in other_links(linked)] == ["nvlink-bridge3", "nvlink2"]
    workers = tuple(
        replace(info, name=f"/job:w/replica:0/task:{n}/device:GPU:0") for n, info in enumerate(linked.devices)
    )
    assert list(other_links(replace(linked, devices=workers))) == []


def test_links_of_gpus_are_none_of_cpus_and_measured_ones_stay() -> None:
    linked = plan((5, 5), GIVEN)
    assert list(other_links(replace(linked, request={**GIVEN, "costs": "costs.json"}))) == []
    cpus = tuple(replace(info, name=info.name.replace("GPU", "CPU")) for info in linked.devices)
    assert list(other_links(replace(linked, devices=cpus))) == []


def test_replicas_that_are_asked_for_are_halved_doubled_and_get_a_device_each() -> None:
    tried = changes(plan((5, 5), {**GIVEN, "strategy": "mixed", "replicas": 2}))
    assert tried[:5] == [
        {"strategy": None, "replicas": None},
        {"replicas": 1},
        {"replicas": 4},
        {"devices": "GPU:0-3"},
        {"hardware": "h100-pcie"},
    ]


def test_a_topology_says_what_devices_and_links_there_are() -> None:
    assert changes(plan((9.5, 9.5), {"topology": "dgx-h100"})) == []


@pytest.mark.parametrize("busy", [(9.5, 9.5), (5, 5), (9, 1)])
def test_few_are_tried_and_no_two_alike(busy: tuple[float, float]) -> None:
    request = {**GIVEN, "strategy": "layer-split", "microbatches": 2, "schedule": "gpipe", "recompute": "all"}
    tried = candidates(plan(busy, {**request, "memory_limit": "1GiB", "pins": {"a": "GPU:0"}}))
    assert len(tried) == MOST_CANDIDATES
    assert all(one.request != other.request for one in tried for other in tried if one is not other)
    assert all("batch_size" not in one.request for one in tried)
