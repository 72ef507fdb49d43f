"""One step on paper, against times and bytes worked out by hand, and against properties of every schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from graphs import Builder, chain, link, on, random_graphs, topology, training_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.communication import in_series, transfer_seconds
from cost_models.topology import Topology, Uplink
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.schedule import MemoryUse, Schedule
from partitioner.planner.bounds.step_time import lower_bound_seconds
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.stages.delayed_gradients import delayed_gradients

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


def test_an_op_that_starts_beside_busy_devices_takes_as_long_as_there() -> None:
    """Bug: two loops, of one direction each, slowed each other down by nothing where a split runs both at once."""
    made = independent()
    made.add("after", 2.0, "b")
    costed = made.costed(topology(3, kind="CPU"))
    ops = range(len(costed.graph.ops))
    crowded = {device: tuple(3 * costed.seconds[op][device] for op in ops) for device in range(3)}
    schedule = simulate(replace(costed, crowded=crowded), on(costed, b=1, after=1))
    # One of two neighbours is busy when `b` starts, and none when `after` does.
    assert spans(schedule) == {"a": (0.0, 1.0), "b": (0.0, 4.0), "after": (4.0, 6.0)}
    elsewhere = replace(costed, crowded={})
    assert simulate(elsewhere, on(costed, b=1, after=1)).step_seconds == 4.0


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
    costed = made.costed(topology(2, kind="CPU"))
    schedule = simulate(costed, on(costed, b=1, c=1))
    assert sends(schedule) == [("a:0", 1.0, 2.25), ("b:0", 1.0, 2.25)]


@pytest.mark.parametrize(("kind", "first", "second"), [("CPU", 1.0, 2.25), ("GPU", 3.0, 4.25)])
def test_a_copy_waits_for_what_a_gpu_had_been_given_and_overlaps_with_what_it_is_given_later(
    kind: str, first: float, second: float
) -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0)
    made.add("busy", 3.0)
    made.add("c", 5.0, "a")
    made.add("d", 1.0, "b")
    costed = made.costed(topology(2, kind=kind))
    schedule = simulate(costed, on(costed, busy=1, c=1, d=1))
    assert sends(schedule) == [("a:0", first, first + 1.25), ("b:0", second, second + 1.25)]
    # On the GPU, b crosses while c runs: c was given to it after b.
    start = max(3.0, first + 1.25)
    assert spans(schedule)["c"] == (start, start + 5.0)


def test_a_copy_to_a_gpu_waits_for_ops_that_follow_there_on_what_it_runs() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("busy", 2.0)
    made.add("next", 2.0, "busy")  # not ready at 1 s, but in the stream
    made.add("c", 1.0, "a")
    costed = made.costed()
    schedule = simulate(costed, on(costed, busy=1, next=1, c=1))
    assert sends(schedule) == [("a:0", 4.0, 5.25)]


def test_a_copy_waits_for_nothing_that_a_gpu_is_given_after_the_host_asked_for_it() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, "a")  # given at the start, as a is, and asked for then
    made.add("e", 0.5)
    made.add("busy", 3.0, "e")
    made.add("c", 1.0, "b")
    costed = made.costed(topology(3))
    schedule = simulate(costed, on(costed, e=2, busy=1, c=1))
    assert sends(schedule) == [("e:0", 0.5, 1.75), ("b:0", 2.0, 3.25)]
    assert spans(schedule)["busy"] == (1.75, 4.75)


def test_a_gpu_of_another_process_is_not_waited_for() -> None:
    costed = chain([1.0, 1.0], [256, 0]).costed()
    far = replace(costed.topology.devices[1], name="/job:worker/replica:0/task:0/device:GPU:0")
    costed = replace(costed, topology=replace(costed.topology, devices=(costed.topology.devices[0], far)))
    assert sends(simulate(costed, on(costed, op1=1))) == [("op0:0", 1.0, 2.25)]


def two_pairs(*uplinks: set[int]) -> Topology:
    """Devices 0 and 1 of one host, 2 and 3 of another; each set of devices has an adapter of 256 bytes/s."""
    nics = tuple(Uplink(name=f"nic {min(on)}", devices=frozenset(on), link=link(0.0, 256.0)) for on in uplinks)
    return replace(topology(4), uplinks=nics)


def crossing(*sizes_bytes: int, seconds: Sequence[float] = (1.0, 1.0)) -> Builder:
    """`a` is sent to `c` and `b` to `d`, when they have run."""
    made = Builder()
    for name, size, taken in zip("ab", sizes_bytes, seconds, strict=True):
        made.add(name, taken, size_bytes=size)
    made.add("c", 1.0, "a")
    made.add("d", 1.0, "b")
    return made


def test_two_transfers_over_one_adapter_take_twice_as_long_over_two_they_do_not() -> None:
    for uplinks, end in (((), 2.25), (({0, 1},), 3.25), (({2, 3},), 3.25), (({0}, {1}), 2.25), (({0}, {3}), 2.25)):
        costed = crossing(256, 256).costed(two_pairs(*uplinks))
        schedule = simulate(costed, {"a": 0, "b": 1, "c": 2, "d": 3})
        assert sends(schedule) == [("a:0", 1.0, end), ("b:0", 1.0, end)]
        assert schedule.step_seconds == end + 1.0


def test_transfers_against_each_other_share_no_adapter() -> None:
    costed = crossing(256, 256).costed(two_pairs({0, 1}, {2, 3}))
    assert simulate(costed, {"a": 0, "b": 3, "c": 2, "d": 1}).step_seconds == 3.25


def test_a_transfer_that_starts_later_slows_down_the_one_under_way() -> None:
    costed = crossing(512, 256, seconds=[1.0, 2.0]).costed(two_pairs({0, 1}))
    schedule = simulate(costed, {"a": 0, "b": 1, "c": 2, "d": 3})
    # 256 bytes of a are through at 2 s; then 256 of each at half the rate.
    assert sends(schedule) == [("a:0", 1.0, 4.25), ("b:0", 2.0, 4.25)]


def test_a_way_through_host_memory_costs_both_hops_and_occupies_both() -> None:
    made = Builder()
    made.add("a", 1.0)
    for name in "bcd":
        made.add(name, 1.0, "a")
    staged = topology(4, wire=in_series([link(0.25, 256.0), link(0.25, 256.0)]))
    costed = made.costed(staged)
    # Alone 0.5 s + 256 / 128 s. Two fill the first hop; three have a third of it each.
    for readers, end in (("b", 3.5), ("bc", 3.5), ("bcd", 4.5)):
        placement = {"a": 0, "b": 0, "c": 0, "d": 0} | {name: 1 + "bcd".index(name) for name in readers}
        assert [round(s.end_seconds, 9) for s in simulate(costed, placement).sends] == [end] * len(readers)


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
    made, placement = case
    costed = made.costed(topology(3), outputs=["o0"])
    left = {name: held[-1][1] - held[0][1] for name, held in simulate(costed, placement).memory.items()}
    home = list(left)[placement["o0"]]
    is_variables = Buffers(costed).root("o0:0") is None  # it lies in a variable's buffer
    kept = 0 if is_variables else 256 * math.ceil(costed.graph.tensor["o0:0"].size_bytes / 256)
    assert left.pop(home) == kept
    assert not any(left.values())


def test_delayed_gradients_let_the_device_before_begin_sooner() -> None:
    """Two layers on each device: without, `d3` runs between `b3` and `b2`, as it is ready first."""
    made = training_chain(4, parameter_bytes=256, slot_bytes=0, saved_bytes=256)
    costed = made.costed(topology(2, wire=link(0.0, 2.0**60)))
    later = {f"{kind}{layer}": 1 for kind in "fbdu" for layer in (2, 3)}
    placement = on(costed, loss=1, **later)
    as_ready = simulate(costed, placement)
    delayed = simulate(costed, placement, delayed=delayed_gradients(costed.graph, placement))
    assert (round(as_ready.step_seconds, 6), round(delayed.step_seconds, 6)) == (14.0, 13.0)
    assert [op for op, _ in sorted(spans(delayed).items(), key=lambda span: span[1]) if op[1:] in ("2", "3")] == [
        "f2", "f3", "b3", "b2", "d3", "d2", "u3", "u2",
    ]  # fmt: skip
    assert delayed.busy_seconds == as_ready.busy_seconds


@given(placed())
def test_all_ops_run_with_delayed_gradients(case: tuple[Builder, dict[str, int]]) -> None:
    made, placement = case
    costed = made.costed(topology(3))
    schedule = simulate(costed, placement, delayed=delayed_gradients(costed.graph, placement))
    working = {op.name for op, cost in zip(costed.graph.ops, costed.costs, strict=True) if cost.flops}
    assert spans(schedule).keys() == working
    assert schedule.step_seconds >= lower_bound_seconds(costed)


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


# -- links that several transfers share -------------------------------------------------------------------------------


def behind_adapters(*bandwidths: float) -> Topology:
    """Four devices, two to a host, each host behind an adapter of so many bytes per second."""
    nics = [
        Uplink(name=f"nic {host}", devices=frozenset({2 * host, 2 * host + 1}), link=link(0.0, bandwidth))
        for host, bandwidth in enumerate(bandwidths)
    ]
    return replace(topology(4), uplinks=tuple(nics))


adapters = st.sampled_from([16.0, 64.0, 256.0, 300.0, 1024.0])


@given(placed(devices=4))
def test_an_adapter_wide_enough_for_all_changes_nothing(case: tuple[Builder, dict[str, int]]) -> None:
    made, placement = case
    free, wide = (simulate(made.costed(on), placement) for on in (topology(4), behind_adapters(2.0**60, 2.0**60)))
    assert wide.step_seconds == free.step_seconds
    assert spans(wide) == spans(free)
    assert sorted(sends(wide)) == sorted(sends(free))
    assert wide.peak == free.peak


def in_the_same_order(costed: CostedGraph, placement: dict[str, int], schedule: Schedule) -> float:
    """Seconds of a step whose devices and links keep to a schedule's order, with nothing else to wait for."""
    graph, wires = costed.graph, costed.topology
    index = {placed.name: number for number, placed in enumerate(wires.devices)}
    before: dict[object, object] = {}
    for name in index:
        runs = sorted((r for r in schedule.runs if r.device == name), key=lambda r: r.start_seconds)
        before |= {after.op: first.op for first, after in pairwise(runs)}
        for target in index:
            sent = [s for s in schedule.sends if (s.source, s.target) == (name, target)]
            ordered = sorted(sent, key=lambda s: (s.start_seconds, s.end_seconds))
            before |= {(b.tensor, index[target]): (a.tensor, index[target]) for a, b in pairwise(ordered)}
    ends: dict[object, float] = {}

    def sent_at(tensor: str, source: str, size_bytes: int, target: int) -> float:
        key = tensor, target
        if key not in ends:
            first = before.get(key)
            free = 0.0
            if first is not None:
                other = first[0]  # type: ignore[index]
                free = sent_at(other, *described(other), target)
            wire = wires.link(placement[source], target)
            ends[key] = max(end_of(source), free) + transfer_seconds(size_bytes, wire)
        return ends[key]

    def described(tensor: str) -> tuple[str, int]:
        if tensor.startswith("^"):
            return tensor[1:], 0
        return graph.tensor[tensor].producer, graph.tensor[tensor].size_bytes

    def end_of(name: str) -> float:
        if name not in ends:
            op, start = graph.op[name], 0.0
            for tensor in [*op.inputs, *(f"^{source}" for source in op.control_inputs)]:
                source, size = described(tensor)
                away = placement[source] != placement[name]
                start = max(start, sent_at(tensor, source, size, placement[name]) if away else end_of(source))
            if name in before:
                start = max(start, end_of(str(before[name])))
            ends[name] = start + costed.seconds[graph.ops.index(op)][placement[name]]
        return ends[name]

    return max(map(end_of, graph.op), default=0.0)


@settings(max_examples=100)
@given(placed(devices=4), adapters, adapters)
def test_sharing_never_makes_the_same_order_faster(case: tuple[Builder, dict[str, int]], a: float, b: float) -> None:
    """Devices take what is ready first, so that sharing may change the order, and another order may be a better one."""
    made, placement = case
    free = topology(4, kind="CPU")  # a GPU lets copies wait, which the order does not say
    shared = replace(free, uplinks=behind_adapters(a, b).uplinks)
    schedule = simulate(made.costed(shared), placement)
    assert schedule.step_seconds >= in_the_same_order(made.costed(free), placement, schedule) * (1 - 1e-9)
    alone = simulate(made.costed(free), placement)
    assert alone.step_seconds == pytest.approx(in_the_same_order(made.costed(free), placement, alone))


@given(placed(devices=4), adapters, adapters)
def test_no_adapter_carries_more_than_it_can(case: tuple[Builder, dict[str, int]], a: float, b: float) -> None:
    made, placement = case
    schedule = simulate(made.costed(behind_adapters(a, b)), placement)
    hosts = {f"/job:localhost/replica:0/task:0/device:GPU:{index}": index // 2 for index in range(4)}
    for host, bandwidth in enumerate((a, b)):
        for ends in ("source", "target"):
            crossing = [
                s for s in schedule.sends if hosts[s.source] != hosts[s.target] and hosts[getattr(s, ends)] == host
            ]
            if crossing:
                first = min(s.start_seconds for s in crossing)
                last = max(s.end_seconds for s in crossing)
                assert last - first >= (0.25 + sum(s.size_bytes for s in crossing) / bandwidth) * (1 - 1e-9)


@given(
    st.lists(st.tuples(st.sampled_from([0.25, 1.0, 4.0]), st.integers(0, 300)), min_size=2, max_size=4),
    st.floats(1.0, 1000.0),
    st.floats(1.0, 10.0),
)
def test_a_narrower_adapter_delays_everybody(sources: list[tuple[float, int]], rate: float, ratio: float) -> None:
    """Where each device has one op, so that no order can change."""
    made, count = Builder(), len(sources)
    for index, (seconds, size) in enumerate(sources):
        made.add(f"a{index}", seconds, size_bytes=4 * size)
        made.add(f"b{index}", 1.0, f"a{index}")
    placement = {f"{kind}{i}": i + (count if kind == "b" else 0) for kind in "ab" for i in range(count)}
    ends = []
    for bandwidth in (rate, rate * ratio):
        nic = Uplink(name="nic", devices=frozenset(range(count)), link=link(0.0, bandwidth))
        schedule = simulate(made.costed(replace(topology(2 * count), uplinks=(nic,))), placement)
        ends.append({send.tensor: send.end_seconds for send in schedule.sends})
    assert all(ends[0][tensor] >= end * (1 - 1e-9) for tensor, end in ends[1].items())
