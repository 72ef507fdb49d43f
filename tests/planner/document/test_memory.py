"""What a plan says of memory: the peak, who is alive then, what is left, and the curve over the step."""

from __future__ import annotations

import pytest
from graphs import Builder, cut_up, on, pipeline, random_graphs, topology
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.op_graph import VariableKind
from partitioner.planner.document.memory import most_over_time, planned_memory
from partitioner.planner.simulate.pipelined import simulate_stages
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.stages.schedules import ScheduleKind

D0, D1 = (f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(2))


def one_op_after_another() -> Builder:
    """x (256) -> a (1024) -> b (512) -> c (256), a read again by c: all three are there when c runs."""
    made = Builder()
    made.variable("w", 4096)
    made.variable("m", 8192, VariableKind.SLOT)
    made.add("a", 1.0, size_bytes=1024, type="MatMul", layer="first", variables=["w", "m"])
    made.add("b", 1.0, "a", size_bytes=512, type="MatMul", layer="second")
    made.add("c", 1.0, "b", "a", size_bytes=256, type="MatMul")
    return made


def test_one_device_by_hand() -> None:
    costed = one_op_after_another().costed(topology(1, memory_bytes=20_000), outputs=["c"])
    (memory,) = planned_memory(costed, simulate(costed, on(costed)), [D0])
    assert memory.peak_seconds == 2.0
    assert (memory.parameter_bytes, memory.slot_bytes, memory.activation_bytes) == (4096, 8192, 1024 + 512 + 256)
    assert memory.peak_bytes == 4096 + 8192 + 1792
    assert memory.headroom_bytes == 20_000 - memory.peak_bytes
    assert [(held.op, held.layer, held.size_bytes) for held in memory.largest] == [
        ("a", "first", 1024), ("b", "second", 512), ("c", "", 256),
    ]  # fmt: skip


def test_no_more_than_five_are_named_largest_first() -> None:
    made = Builder()
    for index in range(8):
        made.add(f"o{index}", 1.0, size_bytes=256 * (index + 1))
    made.add("all", 1.0, *(f"o{index}" for index in range(8)), size_bytes=0, type="Pack")
    costed = made.costed(topology(1))
    (memory,) = planned_memory(costed, simulate(costed, on(costed)), [D0])
    assert [held.op for held in memory.largest] == ["o7", "o6", "o5", "o4", "o3"]


def test_buffers_of_several_microbatches_are_counted_together() -> None:
    costed = pipeline(2, saved_bytes=8192).costed(topology(2))
    programs = cut_up(costed, on(costed, **{f"{kind}1": 1 for kind in "rfdbu"}))
    staged = simulate_stages(programs, costed, num_microbatches=4, schedule=ScheduleKind.GPIPE)
    first, _ = planned_memory(costed, staged.schedule, [D0, D1])
    # Stage 0 keeps f0 of every microbatch until its backward.
    assert [(held.op, held.size_bytes) for held in first.largest[:1]] in ([("f0", 4 * 8192)], [("f0", 3 * 8192)])
    assert first.largest[0].num_buffers * 8192 == first.largest[0].size_bytes


@given(random_graphs(), st.sampled_from(["CPU", "GPU"]))
def test_the_largest_are_part_of_the_peak_and_the_curve_reaches_it(made: Builder, kind: str) -> None:
    costed = made.costed(topology(2, kind=kind))
    for placement in (on(costed), {op.name: index % 2 for index, op in enumerate(costed.graph.ops)}):
        schedule = simulate(costed, placement)
        for memory in planned_memory(costed, schedule, schedule.peak):
            assert memory.peak_bytes == schedule.peak[memory.device].total_bytes
            assert sum(held.size_bytes for held in memory.largest) <= memory.gradient_bytes + memory.activation_bytes
            sizes = [held.size_bytes for held in memory.largest]
            assert sizes == sorted(sizes, reverse=True)
            if schedule.step_seconds > 0:
                assert max(memory.over_time) == memory.peak_bytes


@pytest.mark.parametrize(
    ("held", "most"),
    [
        ([(0.0, 5)], (5, 5, 5, 5)),
        ([(0.0, 5), (1.0, 9), (1.5, 2)], (5, 9, 2, 2)),
        ([(0.0, 5), (3.0, 9), (3.0, 2)], (5, 5, 5, 9)),
        ([], ()),
    ],
)
def test_the_curve_by_hand(held: list[tuple[float, int]], most: tuple[int, ...]) -> None:
    assert most_over_time(held, 4.0, num_parts=4) == most
