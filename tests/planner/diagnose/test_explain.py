"""Why a model does not fit: the fewest requirements and limits that conflict, and changes that were planned."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from graphs import Builder, chain, link, microbatching, pipeline, topology, with_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.topology import Topology
from partitioner.constraints.match import requirements_of
from partitioner.errors import InfeasibleError
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.diagnose.explain import explained
from partitioner.planner.diagnose.what_if import what_if
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.pipeline.search_space import PREFERENCE
from partitioner.stages.schedules import ScheduleKind

MIB = 2**20


def planner(made: Builder, machines: Topology, **options: Any) -> LayoutPlanner:
    """Plans a graph that runs in one piece."""
    base = made.costed(machines.subset([0]))
    given: dict[str, Any] = {
        "machines": machines,
        "batch_size": base.graph.batch_size,
        "costed": lambda _rows, devices, _sums: made.costed(machines.subset(devices)),
        "programs": microbatching(base, 1).programs,
        "counts": (1,),
        "schedules": (ScheduleKind.SEQUENTIAL,),
        "recompute": "none",
        "objective": Objective.THROUGHPUT,
        "requirements": (),
        "time_limit_seconds": 60.0,
        "is_limited": True,
        "seed": 0,
    }
    return LayoutPlanner(**given | options)


def on_all(plan: LayoutPlanner) -> ParallelLayout:
    return plan(Strategy.AUTO, (tuple(range(len(plan.machines.devices))),))


def refused(plan: LayoutPlanner) -> InfeasibleError:
    with pytest.raises(OutOfMemoryError) as raised:
        on_all(plan)
    return explained(raised.value, plan, on_all, (tuple(range(len(plan.machines.devices))),))


def four_layers() -> Builder:
    """256 MiB of parameters each, and next to nothing that flows."""
    return chain([1.0] * 4, [256] * 4, [256 * MIB] * 4)


def test_a_pin_that_leaves_too_little_room() -> None:
    """Three layers of 256 MiB on a device of 600; the fourth is pinned too, and has nothing to do with it."""
    asked = requirements_of({"layer[012]": "GPU:0", "layer3": "GPU:1"}, colocate=["layer3"])
    error = refused(planner(four_layers(), topology(2, memory_bytes=600 * MIB), requirements=asked))
    assert error.exit_code == 4
    assert error.notes[-1] == (
        "conflict: layer0, layer1, layer2 keep 768 MiB and may be on GPU:0 only (pin layer[012]=GPU:0): 600 MiB in all"
    )
    ways_out = (error.help or "").split(", or ")
    assert ways_out[0] == "leave out pin layer[012]=GPU:0"
    assert ways_out[1] == "169 MiB more on each device"
    assert len(ways_out) == 2  # more devices change nothing
    relaxed = planner(four_layers(), topology(2, memory_bytes=600 * MIB), requirements=asked[1:])
    on_all(relaxed)


def test_a_search_that_nobody_limited_has_time_to_explain() -> None:
    """Bug: ways out were looked for in the seconds of a search without a limit; of large models none was named."""
    options = {"is_limited": False, "time_limit_seconds": 0.5}
    plan = planner(four_layers(), topology(1, memory_bytes=600 * MIB), **options)

    def slowly(changed: LayoutPlanner) -> ParallelLayout:
        time.sleep(0.6)
        return on_all(changed)

    with pytest.raises(OutOfMemoryError) as raised:
        on_all(plan)
    error = explained(raised.value, plan, slowly, ((0,),))
    assert (error.help or "").endswith(", or add a device")


def test_more_devices_are_planned_with_before_they_are_suggested() -> None:
    plan = planner(four_layers(), topology(1, memory_bytes=600 * MIB))
    error = refused(plan)
    assert error.notes[-1].startswith("conflict: layer0, layer1, layer2, layer3 keep 1.0 GiB and may be on GPU:0 only:")
    ways_out = (error.help or "").split(", or ")
    assert ways_out[-1] == "add a device"
    assert ways_out[-2].endswith(" MiB more on each device")
    assert len(set(on_all(plan.with_another_device(0)).result.placement.values())) == 2


def test_as_much_more_memory_is_named_as_the_smallest_pipeline_needs() -> None:
    """Bug: a Llama of 70 billion on 16 GPUs of 76 GiB was told that 673 GiB more would help, as one that keeps all
    activations needs, where stages that recompute need 20."""
    made = pipeline(8, forward=8.0, backward=16.0, saved_bytes=[64 * MIB, 64] * 4, parameter_bytes=8 * MIB)
    base, machines = made.costed(topology(1)), topology(2, memory_bytes=40 * MIB, wire=link(0.0, 2.0**60))
    plan = planner(
        made,
        machines,
        costed=lambda rows, on, _sums: replace(with_rows(base, rows), topology=machines.subset(on)),
        programs=microbatching(base, 1, 2, 4, 8).programs,
        counts=(1, 2, 4, 8),
        schedules=PREFERENCE,
        recompute="auto",
    )
    # Variables of four layers; of a row of eight, what one of them keeps, as stages of two run one at a time.
    sizes: list[int] = []

    def replan(asked: LayoutPlanner) -> ParallelLayout:
        sizes.append(asked.machines.devices[0].memory_bytes // MIB)
        return on_all(asked)

    with pytest.raises(OutOfMemoryError) as raised:
        on_all(plan)
    error = explained(raised.value, plan, replan, ((0, 1),))
    assert (error.help or "").startswith("1.0 MiB more on each device")
    assert 40 == 32 + 8 < sizes[0] == 41
    assert max(sizes) == 41  # no plan without limits was needed


@pytest.mark.parametrize(("limit", "sizes"), [(200, []), (300, [4])])
def test_more_devices_are_planned_with_only_where_there_would_be_room(limit: int, sizes: list[int]) -> None:
    """Four parts of 256 MiB: no number of devices of 200 MiB can hold one, and it takes four of 300 MiB, not two."""
    plan = planner(four_layers(), topology(2, memory_bytes=limit * MIB))
    planned: list[int] = []

    def replan(asked: LayoutPlanner) -> ParallelLayout:
        machines = asked.machines.devices
        if len(machines) > 2 and machines[0].memory_bytes == limit * MIB:
            planned.append(len(machines))
        return on_all(asked)

    with pytest.raises(OutOfMemoryError) as raised:
        on_all(plan)
    explained(raised.value, plan, replan, ((0, 1),))
    assert planned == sizes


def test_what_better_machines_gain() -> None:
    """Two towers of 4 s on one device; a second halves that, and then a third and more memory gain nothing."""
    made = Builder()
    for tower in "ab":
        made.add(f"{tower}0", 2.0, layer=f"{tower}0", size_bytes=4)
        made.add(f"{tower}1", 2.0, f"{tower}0", layer=f"{tower}1", size_bytes=4)
    alone = planner(made, topology(1))
    more, memory = what_if(alone, on_all, on_all(alone))
    assert (more.change, more.before, more.after, more.unit) == ("one more device like GPU:0", 8.0, 4.0, "s")
    assert (memory.change, memory.after) == ("1 GiB more on GPU:0", 8.0)
    two = planner(made, topology(2))
    assert [gain.after for gain in what_if(two, on_all, on_all(two))] == [4.0, 4.0, 4.0]


def test_faster_links_gain_what_transfers_take() -> None:
    """A chain that must be cut: 2 s and a transfer of 1 s, whose latency of 0.25 s stays."""
    made = chain([1.0] * 2, [256, 256], [4 * MIB] * 2)
    plan = planner(made, topology(2, memory_bytes=6 * MIB, wire=link(0.25, 256.0)))
    gains = {gain.change: gain for gain in what_if(plan, on_all, on_all(plan))}
    assert gains["twice the bandwidth of every link"].before == 3.25
    assert gains["twice the bandwidth of every link"].after == 2.75
    assert gains["1 GiB more on GPU:0"].after == 2.0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_one_more_device_is_joined_as_its_like(count: int, like: int, hosts: bool) -> None:
    machines = topology(count)
    if hosts:
        placed = machines.devices
        machines = Topology.of_hosts(
            placed, [index // 2 for index in range(count)], within=link(0.0), between=link(9.0)
        )
    like = min(like, count - 1)
    more = machines.with_another(like, "new")
    assert more.subset(range(count)) == machines
    assert more.devices[-1].memory_bytes == machines.devices[like].memory_bytes
    for other in range(count):
        if other != like:
            assert more.link(other, count) == more.link(other, like)
            assert more.link(count, other) == more.link(like, other)
    assert more.faster(2.0).link(0, count).bandwidth_bytes_per_second == 512.0
