"""One step on paper, against times and bytes worked out by hand, and against properties of every schedule."""

from __future__ import annotations

from itertools import permutations

import pytest
from graphs import Builder, chain, link, on, random_graphs, topology, training_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.op_graph import VariableKind
from partitioner.ir.schedule import MemoryUse, Schedule
from partitioner.planner.simulate import simulate

D0 = "/job:localhost/replica:0/task:0/device:GPU:0"
D1 = "/job:localhost/replica:0/task:0/device:GPU:1"


def spans(schedule: Schedule) -> dict[str, tuple[float, float]]:
    return {run.op: (run.start_seconds, run.end_seconds) for run in schedule.runs}


def sends(schedule: Schedule) -> list[tuple[str, float, float]]:
    return [(send.tensor, send.start_seconds, send.end_seconds) for send in schedule.sends]


def independent() -> Builder:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 2.0)
    return made


def test_a_device_is_serial() -> None:
    costed = independent().costed()
    schedule = simulate(costed, on(costed))
    assert spans(schedule) == {"a": (0.0, 1.0), "b": (1.0, 3.0)}
    assert schedule.step_seconds == 3.0
    assert schedule.busy_seconds == {D0: 3.0, D1: 0.0}


def test_two_devices_run_at_once() -> None:
    costed = independent().costed()
    schedule = simulate(costed, on(costed, b=1))
    assert spans(schedule) == {"a": (0.0, 1.0), "b": (0.0, 2.0)}
    assert schedule.step_seconds == 2.0
    assert schedule.busy_seconds == {D0: 1.0, D1: 2.0}


def test_a_faster_device_takes_less() -> None:
    costed = independent().costed(topology(2, speeds=[1.0, 4.0]))
    assert simulate(costed, on(costed, b=1)).step_seconds == 1.0
    assert simulate(costed, on(costed, a=1, b=1)).step_seconds == 0.75


def test_what_became_ready_first_runs_first() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("late", 1.0, "a")
    made.add("b", 1.0)
    costed = made.costed()
    assert spans(simulate(costed, on(costed))) == {"a": (0.0, 1.0), "b": (1.0, 2.0), "late": (2.0, 3.0)}


def test_a_transfer_takes_alpha_plus_bytes_over_beta() -> None:
    costed = chain([1.0, 1.0], [512, 0]).costed()
    schedule = simulate(costed, on(costed, op1=1))
    assert sends(schedule) == [("op0:0", 1.0, 1.0 + 0.25 + 512 / 256)]
    assert spans(schedule)["op1"] == (3.25, 4.25)
    assert schedule.step_seconds == 4.25


def test_a_tensor_with_two_readers_on_a_device_is_sent_once() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, "a")
    made.add("c", 1.0, "a")
    made.add("here", 1.0, "a")
    costed = made.costed()
    schedule = simulate(costed, on(costed, b=1, c=1))
    assert sends(schedule) == [("a:0", 1.0, 2.25)]
    assert spans(schedule) == {"a": (0.0, 1.0), "here": (1.0, 2.0), "b": (2.25, 3.25), "c": (3.25, 4.25)}


def test_a_tensor_is_sent_to_each_device_that_reads_it() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, "a")
    made.add("c", 1.0, "a")
    costed = made.costed(topology(3))
    assert [send.target[-1] for send in simulate(costed, on(costed, b=1, c=2)).sends] == ["1", "2"]


def test_a_busy_link_delays_the_next_transfer() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("b", 1.0)
    made.add("c", 1.0, "a")
    made.add("d", 1.0, "b")
    costed = made.costed()
    schedule = simulate(costed, on(costed, c=1, d=1))
    assert sends(schedule) == [("a:0", 1.0, 3.25), ("b:0", 3.25, 4.5)]
    assert spans(schedule)["d"] == (4.5, 5.5)


def test_the_two_directions_of_a_link_are_apart() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0)
    made.add("c", 1.0, "a")
    made.add("d", 1.0, "b")
    costed = made.costed()
    schedule = simulate(costed, on(costed, b=1, c=1))
    assert sends(schedule) == [("a:0", 1.0, 2.25), ("b:0", 1.0, 2.25)]


def test_free_ops_take_no_device_time() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("free", 0.0, "a")
    made.add("b", 2.0, "free")
    costed = made.costed()
    schedule = simulate(costed, on(costed))
    assert spans(schedule) == {"a": (0.0, 1.0), "b": (1.0, 3.0)}


def test_a_free_op_does_not_wait_for_a_busy_device() -> None:
    made = Builder()
    made.add("x", 0.0)
    made.add("long", 8.0)
    made.add("free", 0.0, "x")
    made.add("there", 1.0, "free")
    costed = made.costed()
    assert spans(simulate(costed, on(costed, there=1)))["there"] == (1.25, 2.25)


def test_ops_that_a_free_source_releases_run_once() -> None:
    made = Builder()
    made.add("constant", 0.0)
    made.add("a", 1.0, "constant")
    made.add("b", 1.0, "a")
    costed = made.costed()
    schedule = simulate(costed, on(costed))
    assert [run.op for run in schedule.runs] == ["a", "b"]
    assert schedule.step_seconds == 2.0


def test_a_control_edge_across_devices_takes_the_latency() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, after=["a"])
    costed = made.costed()
    schedule = simulate(costed, on(costed, b=1))
    assert sends(schedule) == [("^a", 1.0, 1.25)]
    assert spans(schedule)["b"] == (1.25, 2.25)
    assert schedule.peak[D1].activation_bytes == 256  # b's own output: a signal takes no memory


def test_an_activation_is_freed_after_its_last_reader() -> None:
    costed = chain([1.0] * 4, [256, 512, 1024, 256]).costed()
    peak = simulate(costed, on(costed)).peak
    assert peak == {D0: MemoryUse(activation_bytes=512 + 1024), D1: MemoryUse()}


def test_an_activation_that_is_read_again_late_stays() -> None:
    made = chain([1.0] * 3, [256, 512, 1024])
    made.add("end", 1.0, "op2", "op0", size_bytes=256)
    costed = made.costed()
    assert simulate(costed, on(costed)).peak[D0].activation_bytes == 256 + 512 + 1024


def test_an_unread_result_is_freed_at_once() -> None:
    made = Builder()
    made.add("unread", 1.0, size_bytes=1024)
    made.add("b", 1.0, size_bytes=512)
    costed = made.costed()
    assert simulate(costed, on(costed)).peak[D0].activation_bytes == 1024


def test_graph_outputs_stay() -> None:
    made = Builder()
    made.add("unread", 1.0, size_bytes=1024)
    made.add("b", 1.0, size_bytes=512)
    costed = made.costed(outputs=["unread"])
    assert simulate(costed, on(costed)).peak[D0].activation_bytes == 1024 + 512


def test_a_sent_tensor_is_held_on_both_sides_until_it_arrives() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=1024)
    made.add("meanwhile", 1.0, size_bytes=512, after=["a"])
    made.add("b", 1.0, "a", size_bytes=256)
    made.add("later", 1.0, "b", size_bytes=768)
    costed = made.costed()
    peak = simulate(costed, on(costed, b=1)).peak
    # a's transfer lasts until 1 + 0.25 + 4: it lies beside `meanwhile`, and is gone when `later` runs.
    assert peak[D0].activation_bytes == 1024 + 512
    assert peak[D1].activation_bytes == 1024 + 256


@pytest.mark.parametrize("device", ["one device", "two devices"])
def test_a_handed_on_buffer_counts_once(device: str) -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("reshape", 0.0, "a", size_bytes=512)
    made.add("b", 1.0, "reshape", size_bytes=256)
    costed = made.costed()
    peak = simulate(costed, on(costed) if device == "one device" else on(costed, b=1)).peak
    if device == "one device":
        assert peak[D0].activation_bytes == 512 + 256
    else:
        assert (peak[D0].activation_bytes, peak[D1].activation_bytes) == (512, 512 + 256)


def test_a_buffer_lives_until_the_last_reader_of_all_its_names() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("reshape", 0.0, "a", size_bytes=512)
    made.add("b", 1.0, "a", size_bytes=256)
    made.add("c", 1.0, "b", size_bytes=1024)
    made.add("d", 1.0, "c", "reshape", size_bytes=256)
    costed = made.costed()
    assert simulate(costed, on(costed)).peak[D0].activation_bytes == 512 + 1024 + 256


def test_a_variable_that_is_read_takes_no_second_buffer_at_home_but_a_copy_elsewhere() -> None:
    made = Builder()
    made.variable("w", 1024)
    made.add("read", 0.0, size_bytes=1024, variables=["w"])
    made.add("use", 1.0, "read", size_bytes=256)
    costed = made.costed()
    assert simulate(costed, on(costed)).peak[D0] == MemoryUse(parameter_bytes=1024, activation_bytes=256)
    away = simulate(costed, on(costed, use=1)).peak
    assert away[D0] == MemoryUse(parameter_bytes=1024)
    assert away[D1] == MemoryUse(activation_bytes=1024 + 256)


def test_the_peak_of_a_training_step_by_kind() -> None:
    made = training_chain(1, parameter_bytes=512, slot_bytes=1024, saved_bytes=256)
    made.variable("seed", 256, VariableKind.STATE)
    made.add("random", 0.0, size_bytes=0, variables=["seed"])
    costed = made.costed()
    # While the gradient of the weight is computed: what the layer saved and what came back, 256 each.
    assert simulate(costed, on(costed)).peak[D0] == MemoryUse(
        parameter_bytes=512, slot_bytes=1024, state_bytes=256, gradient_bytes=512, activation_bytes=512
    )


def test_buffers_are_rounded_as_the_allocator_does() -> None:
    costed = chain([1.0], [4]).costed(topology(1, kind="GPU"))
    assert simulate(costed, on(costed)).peak[D0].activation_bytes == 256
    costed = chain([1.0], [4]).costed(topology(1, kind="CPU"))
    assert next(iter(simulate(costed, on(costed)).peak.values())).activation_bytes == 64


@st.composite
def placed(draw: st.DrawFn, devices: int = 3) -> tuple[Builder, dict[str, int]]:
    made = draw(random_graphs())
    return made, {op.name: draw(st.integers(0, devices - 1)) for op in made.ops}


@given(random_graphs())
def test_one_device_takes_the_sum_of_its_ops(made: Builder) -> None:
    costed = made.costed(topology(1))
    schedule = simulate(costed, on(costed))
    assert schedule.step_seconds == sum(cost.flops for cost in costed.costs) / 2**10
    assert not schedule.sends


@given(placed())
def test_every_op_runs_once_after_all_it_waits_for(case: tuple[Builder, dict[str, int]]) -> None:
    made, placement = case
    costed = made.costed(topology(3))
    schedule = simulate(costed, placement)
    names = [run.op for run in schedule.runs]
    assert sorted(names) == sorted(op.name for op, cost in zip(made.ops, made.costs, strict=True) if cost.flops)
    times = spans(schedule)
    for op in made.ops:
        for source in [*(name.removesuffix(":0") for name in op.inputs), *op.control_inputs]:
            if op.name in times and source in times:
                wire = 0.25 if placement[source] != placement[op.name] else 0.0
                assert times[op.name][0] >= times[source][1] + wire
    for a, b in permutations(schedule.runs, 2):
        if a.device == b.device and a.start_seconds < b.start_seconds:
            assert a.end_seconds <= b.start_seconds


@given(placed())
def test_what_is_left_at_the_end_is_only_what_the_graph_returns(case: tuple[Builder, dict[str, int]]) -> None:
    from partitioner.planner.buffers import Buffers
    from partitioner.planner.simulate import _Simulation

    made, placement = case
    costed = made.costed(topology(3), outputs=["o0"])
    simulation = _Simulation(costed, placement, Buffers(costed))
    simulation.run()
    held = {name for memory in simulation.memory for name, _ in memory.held}
    assert held <= {"o0:0"}
    assert all(count >= 0 for count in simulation.readers.values())


@given(placed())
def test_a_simulation_is_deterministic(case: tuple[Builder, dict[str, int]]) -> None:
    made, placement = case
    costed = made.costed(topology(3))
    assert simulate(costed, placement) == simulate(costed, placement)


@settings(max_examples=200)
@given(placed(), st.permutations(range(3)))
def test_names_of_alike_devices_do_not_matter(case: tuple[Builder, dict[str, int]], order: list[int]) -> None:
    made, placement = case
    costed = made.costed(topology(3))
    schedule = simulate(costed, placement)
    moved = simulate(costed, {op: order[device] for op, device in placement.items()})
    names = [placed.name for placed in costed.topology.devices]
    assert moved.step_seconds == schedule.step_seconds
    assert {names[order[d]]: schedule.peak[names[d]] for d in range(3)} == moved.peak


@given(placed(), st.sampled_from([0.0, 0.125, 2.0]))
def test_a_slower_wire_is_counted_on_every_path(case: tuple[Builder, dict[str, int]], latency: float) -> None:
    """Transfers that take no time at all leave the work of the busiest device as the least."""
    made, placement = case
    costed = made.costed(topology(3, wire=link(latency, 2.0**60)))
    schedule = simulate(costed, placement)
    assert schedule.step_seconds >= max(schedule.busy_seconds.values())
    assert len(schedule.sends) == len({(send.tensor, send.target) for send in schedule.sends})
