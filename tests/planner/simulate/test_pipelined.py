"""A step in stages and microbatches on paper, against times and bytes worked out by hand, and what must hold of any."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from graphs import SECOND, Builder, cut_up, link, on, pipeline, placed_steps, topology
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.specs import OpCost
from cost_models.topology import Uplink
from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.schedule import MemoryUse
from partitioner.ir.stage_programs import StageProgram, StagePrograms
from partitioner.planner.simulate.pipelined import simulate_stages
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.planner.simulate.program_costs import StageCosts
from partitioner.stages.schedules import ScheduleKind

D0, D1 = (f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(2))
FREE = link(0.0, 2.0**60)
# Calls and ops cost microseconds that times in seconds need not name.
DISPATCH = 0.02
GPIPE, ONE_F_ONE_B, ZB_H1, INTERLEAVED, SEQUENTIAL = (
    ScheduleKind(name) for name in ("gpipe", "1f1b", "zb-h1", "interleaved", "sequential")
)


def seconds(value: float):
    return pytest.approx(value, abs=DISPATCH)


def on_devices(num_stages: int, num_devices: int) -> dict[str, int]:
    """Stage i on device i mod D."""
    return {f"{kind}{i}": i % num_devices for kind in "rfdbu" for i in range(num_stages)}


def two_stages(wire=FREE, **sizes) -> tuple[CostedGraph, StagePrograms]:
    costed = pipeline(2, **sizes).costed(topology(2, wire=wire))
    return costed, cut_up(costed, on(costed, **on_devices(2, 2)))


def run(costed: CostedGraph, programs: StagePrograms, count: int, kind: ScheduleKind) -> PipelineSchedule:
    return simulate_stages(programs, costed, num_microbatches=count, schedule=kind)


def spans(schedule: PipelineSchedule, device: str) -> list[tuple[str, float, float]]:
    return [
        (bar.action, round(bar.start_seconds, 1), round(bar.end_seconds, 1))
        for bar in schedule.timeline
        if bar.device == device
    ]


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (GPIPE, 5 * 3.0),  # (M + S - 1) (f + b)
        (ONE_F_ONE_B, 5 * 3.0),
        (INTERLEAVED, 5 * 3.0),  # one stage per device: 1f1b
        (SEQUENTIAL, 4 * 2 * 3.0),  # M S (f + b)
    ],
)
def test_two_stages_and_four_microbatches_take(kind: ScheduleKind, step: float) -> None:
    costed, programs = two_stages()
    schedule = run(costed, programs, 4, kind)
    assert schedule.step_seconds == seconds(step)
    assert schedule.busy_seconds == {D0: seconds(12.0), D1: seconds(12.0)}
    assert schedule.stage_seconds == (seconds(12.0), seconds(12.0))


def test_two_rounds_of_stages_halve_the_bubble() -> None:
    costed = pipeline(4, forward=1.0, backward=1.0).costed(topology(2, wire=FREE))
    programs = cut_up(costed, on(costed, **on_devices(4, 2)))
    # M V (f + b) + (D - 1) (f + b); stage after stage on a device it would be (D - 1) V (f + b).
    assert run(costed, programs, 4, INTERLEAVED).step_seconds == seconds(18.0)


def test_one_forward_one_backward_by_hand() -> None:
    costed, programs = two_stages()
    schedule = run(costed, programs, 4, ONE_F_ONE_B)
    assert spans(schedule, D0) == [
        ("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 4, 6), ("0F2", 6, 7), ("0B1", 7, 9), ("0F3", 9, 10), ("0B2", 10, 12),
        ("0B3", 13, 15), ("U", 15, 15),
    ]  # fmt: skip
    assert spans(schedule, D1)[:3] == [("1F0", 1, 2), ("1B0", 2, 4), ("1F1", 4, 5)]


def test_gradients_of_weights_fill_the_gaps_of_zb_h1() -> None:
    """The error of the second stage takes no time, the gradients of its weights two seconds of three."""
    costed, _ = two_stages()
    programs = cut_up(costed, on(costed, **on_devices(2, 2)), parts_backward=True)
    schedule = run(costed, programs, 4, ZB_H1)
    assert [span for span in spans(schedule, D1) if span[0] != "U"] == [
        ("1F0", 1, 2), ("1B0", 2, 2), ("1F1", 2, 3), ("1B1", 3, 3), ("1W0", 3, 5), ("1F2", 5, 6), ("1B2", 6, 6),
        ("1W1", 6, 8), ("1F3", 8, 9), ("1B3", 9, 9), ("1W2", 9, 11), ("1W3", 11, 13),
    ]  # fmt: skip
    assert [span for span in spans(schedule, D0) if span[0] != "U"] == [
        ("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 2, 4), ("0F2", 4, 5), ("0B1", 5, 7), ("0F3", 7, 8), ("0B2", 8, 10),
        ("0B3", 10, 12),
    ]  # fmt: skip
    assert schedule.stage_seconds == (seconds(12.0), seconds(12.0))


def test_what_gradients_of_weights_read_is_held_for_them() -> None:
    """The second stage holds the inputs of two microbatches where 1f1b holds those of one."""
    costed, programs = two_stages(saved_bytes=2**20)
    parted = cut_up(costed, on(costed, **on_devices(2, 2)), parts_backward=True)
    held, held_longer = (
        run(costed, made, 4, kind).peak[D1].activation_bytes
        for made, kind in ((programs, ONE_F_ONE_B), (parted, ZB_H1))
    )
    assert held_longer >= held + 2**20


def test_no_update_before_all_backwards_have_ended() -> None:
    costed, programs = two_stages()
    schedule = run(costed, programs, 4, ONE_F_ONE_B)
    ends = [bar.end_seconds for bar in schedule.timeline if bar.action != "U"]
    assert [bar.device for bar in schedule.timeline if bar.action == "U"] == [D1, D0]
    assert all(bar.start_seconds >= max(ends) for bar in schedule.timeline if bar.action == "U")


def test_links_carry_one_value_at_a_time() -> None:
    costed, programs = two_stages(link(latency_seconds=0.5, bandwidth_bytes_per_second=256.0))
    schedule = run(costed, programs, 4, GPIPE)
    there = [send for send in schedule.sends if send.source == D0]
    assert [send.tensor for send in there] == ["f0:0"] * 4
    # 0.5 s + 1024 / 256 s each; made at 1, 2, 3, 4 s.
    assert [round(send.start_seconds, 1) for send in there] == [1.0, 5.5, 10.0, 14.5]
    assert [round(send.end_seconds, 1) for send in there] == [5.5, 10.0, 14.5, 19.0]


def forwards(num_stages: int) -> Builder:
    made = pipeline(num_stages)
    made.ops = [op for op in made.ops if op.phase == "forward"]
    names = {op.name for op in made.ops}
    made.costs = made.costs[: len(made.ops)]
    made.tensors = [tensor for tensor in made.tensors if tensor.producer in names]
    return made


@pytest.mark.parametrize(
    ("kind", "copies", "step"), [("CPU", [(5, 6), (8, 9), (11, 12)], 21), ("GPU", [(5, 6), (11, 12), (12, 13)], 22)]
)
def test_a_copy_waits_for_what_a_gpu_had_been_given_when_it_was_asked_for(
    kind: str, copies: list[tuple[int, int]], step: int
) -> None:
    # Forwards take 3, 1 and 5 s, transfers 1 s. The last device is given the first microbatch at 6 s, the one before it
    # the second at 7 s, for which it asks at once, and the third at 10 s, when the last one has the first only.
    costed = of_seconds(forwards(3), f0=3.0, f1=1.0, f2=5.0).costed(
        topology(3, wire=link(0.0, 1024.0), kind=kind), outputs=["f2"]
    )
    placement = on(costed, x=0, r0=0, f0=0, r1=1, f1=1, r2=2, f2=2)
    schedule = run(costed, cut_up(costed, placement), 3, GPIPE)
    sent = [(round(s.start_seconds), round(s.end_seconds)) for s in schedule.sends if s.tensor == "f1:0"]
    assert sent == copies
    assert schedule.step_seconds == seconds(step)


def test_a_host_that_runs_ahead_asks_for_copies_before_the_receiver_is_given_anything() -> None:
    # All microbatches are there at the start, so that GPU:0 is given all, and asks for all copies, within no time.
    costed = forwards(2).costed(topology(2, wire=link(0.0, 1024.0)), outputs=["f1"])
    schedule = run(costed, cut_up(costed, on(costed, x=0, r0=0, f0=0, r1=1, f1=1)), 3, GPIPE)
    sent = [(round(s.start_seconds), round(s.end_seconds)) for s in schedule.sends if s.tensor == "f0:0"]
    assert sent == [(1, 2), (2, 3), (3, 4)]


def of_seconds(made: Builder, **taken: float) -> Builder:
    for index, op in enumerate(made.ops):
        if op.name in taken:
            made.costs[index] = OpCost(flops=round(taken[op.name] * SECOND))
    return made


@pytest.mark.parametrize(("uplinks", "step"), [([], 11.0), ([{0, 1}], 12.0), ([{0}, {1}], 11.0)])
def test_microbatches_that_leave_a_host_at_the_same_time_share_its_adapter(
    uplinks: list[set[int]], step: float
) -> None:
    # Stages 0 and 2 are on one host, 1 and 3 on another; every forward and every transfer takes 1 s alone.
    wire = link(0.0, 1024.0)
    nics = tuple(Uplink(name=str(on), devices=frozenset(on), link=wire) for on in uplinks)
    made, devices = forwards(4), [0, 2, 1, 3]
    costed = made.costed(replace(topology(4, wire=wire, kind="CPU"), uplinks=nics), outputs=["f3"])
    programs = cut_up(costed, {"x": 0} | {f"{kind}{i}": devices[i] for kind in "rf" for i in range(4)})
    schedule = run(costed, programs, 5, GPIPE)
    # The last microbatch leaves device 0 and the first leaves device 1 at 5 s, each then at half the rate.
    assert schedule.step_seconds == seconds(step)
    leaving = [
        (s.source[-1], round(s.start_seconds), round(s.end_seconds)) for s in schedule.sends if s.target[-1] != "1"
    ]
    assert (("0", 5, 7) in leaving) == (("1", 5, 7) in leaving) == (step == 12.0)


def test_a_tensor_for_two_devices_of_another_host_crosses_to_it_once() -> None:
    # Every forward and every transfer takes 1 s.
    made = forwards(3)
    made.ops = [replace(op, inputs=(*op.inputs, "f0:0")) if op.name == "f2" else op for op in made.ops]
    costed = made.costed(topology(3, wire=link(0.0, 1024.0), kind="CPU", tasks=[0, 1, 1]), outputs=["f2"])
    schedule = run(costed, cut_up(costed, {"x": 0} | {f"{kind}{i}": i for kind in "rf" for i in range(3)}), 1, GPIPE)
    sent = [(s.source[-1], s.target[-1], round(s.start_seconds), round(s.end_seconds)) for s in schedule.sends]
    # What the last stage gets of the first is handed on while the one between works.
    assert sorted(sent) == [("0", "1", 1, 2), ("1", "2", 2, 3), ("1", "2", 3, 4)]
    assert schedule.step_seconds == seconds(5.0)


@given(placed_steps(tasks=[0, 1, 1]), st.sampled_from([1, 2]))
def test_what_a_microbatch_makes_enters_no_host_twice(case, count: int) -> None:
    costed, placement = case
    programs = cut_or_skip(costed, placement)
    schedule = run(costed, programs, count, GPIPE)
    repeated = {name for program in programs.repeated for name in program.outputs}
    entered = Counter(s.tensor for s in schedule.sends if s.tensor in repeated and s.source[-1] == "0")
    arrived = {(s.tensor, s.target) for s in schedule.sends}
    # What updates read of all microbatches together is sent beside them.
    assert all(times <= count + (name in programs.gathered) for name, times in entered.items())
    for program in programs.repeated:
        made = {name: other.device for other in programs.programs for name in other.outputs}
        assert arrived >= {(n, program.device) for n in program.inputs if made.get(n, program.device) != program.device}


@pytest.mark.parametrize(("uplinks", "span"), [([], (8.2, 10.2)), ([2.0**60], (8.2, 10.2)), ([512.0], (10.5, 14.5))])
def test_what_microbatches_gave_crosses_the_adapter_on_its_way_to_the_update(uplinks: list[float], span) -> None:
    made = pipeline(2)
    made.add("norm", 0.0, "d0", "d1", size_bytes=4, phase=Phase.UPDATE)
    nics = tuple(Uplink(name="nic", devices=frozenset({1}), link=link(0.0, rate)) for rate in uplinks)
    costed = made.costed(replace(topology(2, wire=link(0.0, 1024.0), kind="CPU"), uplinks=nics))
    schedule = run(costed, cut_up(costed, on(costed, **on_devices(2, 2), norm=0)), 2, GPIPE)
    # The sum of d1, 2048 bytes, leaves behind the last gradient of f0, 256 bytes, when device 1 is done: at 8 s, or,
    # where each f0 took 2 s to reach it, at 10 s.
    (sent,) = [s for s in schedule.sends if s.tensor == "d1:0"]
    assert (sent.start_seconds, sent.end_seconds) == (pytest.approx(span[0], abs=0.1), pytest.approx(span[1], abs=0.1))
    assert schedule.step_seconds == pytest.approx(span[1], abs=0.1)


def test_bytes_of_gpipe_by_hand() -> None:
    costed, programs = two_stages()
    # While 0B1 runs: x and f0 of microbatches 1 to 3, the old and the new sum of d0, and the gradients from stage 1 of
    # microbatch 1 and, since it is due just when 0B1 ends, of 2.
    assert run(costed, programs, 4, GPIPE).peak[D0] == MemoryUse(
        parameter_bytes=4096, activation_bytes=3 * 256 + 3 * 1024 + 2 * 256, gradient_bytes=2 * 2048
    )


def test_bytes_of_one_forward_one_backward_by_hand() -> None:
    costed, programs = two_stages()
    # While 0B1 runs: x of microbatches 1 to 3, f0 of 1 and 2, the gradient from stage 1, both sums of d0.
    assert run(costed, programs, 4, ONE_F_ONE_B).peak[D0] == MemoryUse(
        parameter_bytes=4096, activation_bytes=3 * 256 + 2 * 1024 + 256, gradient_bytes=2 * 2048
    )


def test_what_cannot_come_earlier_does_not_count_earlier() -> None:
    costed, programs = two_stages()
    schedule = run(costed, programs, 4, SEQUENTIAL)
    # Stage 1 has nothing to do until 0F1 has ended, which waits for 0B0, and so for 1B0: one microbatch at a time.
    assert schedule.peak[D1].activation_bytes == 1024 + 1024 + 256


def test_memory_over_time_by_hand() -> None:
    costed, programs = two_stages()
    held = run(costed, programs, 1, ONE_F_ONE_B).memory[D0]
    # The batch; then what 0F0 makes, which 0B0 reads; 0B0 makes the gradient; the update lets it go.
    rounded = [(round(when), size) for when, size in held]
    assert (0, 4096 + 256 + 1024) in rounded
    assert (4, 4096 + 256 + 1024 + 256 + 2048) in rounded
    assert held[-1][1] == 4096


def test_recomputed_stages_keep_only_what_enters_them() -> None:
    made = pipeline(4, saved_bytes=2**20, forward=1.0, backward=1.0)
    costed = made.costed(topology(2, wire=FREE))
    halves = on(costed, **{f"{kind}{i}": i // 2 for kind in "rfdbu" for i in range(4)})
    kept = run(costed, cut_up(costed, halves), 4, GPIPE)
    again = run(costed, cut_up(costed, halves, recompute=None), 4, GPIPE)
    # Stage 0 keeps f0 and f1 of four microbatches, or makes them again from x for one at a time.
    assert kept.peak[D0].activation_bytes > 8 * 2**20
    assert again.peak[D0].activation_bytes < 4 * 2**20
    assert again.stage_seconds[0] == seconds(4 * (2 + 4))
    assert kept.stage_seconds[0] == seconds(4 * 4)


def test_inference_has_no_backward_and_keeps_nothing() -> None:
    costed = forwards(2).costed(topology(2, wire=FREE), outputs=["f1"])
    programs = cut_up(costed, {"x": 0, "r0": 0, "f0": 0, "r1": 1, "f1": 1})
    schedule = run(costed, programs, 4, GPIPE)
    assert schedule.step_seconds == seconds(5.0)
    # 0F1 makes its output while that of 0F0 leaves.
    assert schedule.peak[D0].activation_bytes == 3 * 256 + 2 * 1024
    # Results of all microbatches, and the rows of them together: what the caller gets.
    assert schedule.peak[D1].activation_bytes == 4 * 1024 + 4 * 1024


def test_the_result_of_one_microbatch_is_returned_as_it_is() -> None:
    costed = forwards(2).costed(topology(2, wire=FREE), outputs=["f1"])
    programs = cut_up(costed, {"x": 0, "r0": 0, "f0": 0, "r1": 1, "f1": 1})
    assert run(costed, programs, 1, GPIPE).peak[D1].activation_bytes == 1024 + 1024


def test_an_output_that_is_a_view_of_what_its_program_made_counts() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    made.add("f", 1.0, "x", size_bytes=1024)
    made.add("view", 0.0, "f", size_bytes=1024)
    made.add("g", 1.0, "view", size_bytes=256)
    costed = made.costed(topology(2, wire=FREE), outputs=["g"])
    schedule = run(costed, cut_up(costed, {"x": 0, "f": 0, "view": 0, "g": 1}), 4, GPIPE)
    # 0F1 makes its output while that of 0F0 leaves. While 1F2 runs: its input and, since it is due just when 1F2 ends,
    # that of 1F3, and three results.
    assert schedule.peak[D0].activation_bytes == 3 * 256 + 2 * 1024
    assert schedule.peak[D1].activation_bytes == 2 * 1024 + 3 * 256


def test_a_schedule_that_does_not_go_with_the_microbatches_is_refused() -> None:
    costed = pipeline(4).costed(topology(2))
    programs = cut_up(costed, on(costed, **on_devices(4, 2)))
    with pytest.raises(UsageError, match="multiple of the devices"):
        run(costed, programs, 3, INTERLEAVED)


# -- what must hold of any graph --------------------------------------------------------------------------------------

counts, schedules = st.sampled_from([1, 2, 4]), st.sampled_from([GPIPE, ONE_F_ONE_B, SEQUENTIAL])
cases = st.tuples(placed_steps(), counts, schedules)
# Where copies wait for their receiver, a copy that is late may wait for less, and a narrower link may help.
cases_without_waits = st.tuples(placed_steps(kind="CPU"), counts, schedules)


def cut_or_skip(costed: CostedGraph, placement: dict[str, int]) -> StagePrograms:
    try:
        programs = cut_up(costed, placement)
    except UsageError:
        assume(False)
        raise
    assume(programs.stages)
    return programs


def calls(programs: StagePrograms, count: int) -> list[tuple[StageProgram, int, float]]:
    return [(program, count if program.kind in ("forward", "backward") else 1, 0.0) for program in programs.programs]


def path_seconds(costed: CostedGraph, programs: StagePrograms) -> float:
    """Critical path of one microbatch through its programs, transfers free."""
    costs = StageCosts(costed).all(programs)
    ends: dict[str, float] = {}
    longest = 0.0
    for program, cost in zip(programs.programs, costs, strict=True):
        end = max((ends[name] for name in program.inputs if name in ends), default=0.0) + cost.seconds
        ends |= dict.fromkeys(program.outputs, end)
        longest = max(longest, end)
    return longest


@given(cases)
def test_no_step_is_shorter_than_the_work_of_a_device_or_the_way_of_a_microbatch(case) -> None:
    (costed, placement), count, kind = case
    programs = cut_or_skip(costed, placement)
    schedule = run(costed, programs, count, kind)
    work = dict.fromkeys([placed.name for placed in costed.topology.devices], 0.0)
    for (program, times, _), cost in zip(calls(programs, count), StageCosts(costed).all(programs), strict=True):
        work[program.device] += times * cost.seconds
    assert schedule.busy_seconds == pytest.approx(work)
    assert schedule.step_seconds >= max(work.values()) * (1 - 1e-9)
    assert schedule.step_seconds >= path_seconds(costed, programs) * (1 - 1e-9)


@given(cases)
def test_a_device_does_one_thing_at_a_time(case) -> None:
    (costed, placement), count, kind = case
    schedule = run(costed, cut_or_skip(costed, placement), count, kind)
    for name in schedule.busy_seconds:
        bars = sorted((b.start_seconds, b.end_seconds) for b in schedule.timeline if b.device == name)
        assert all(after[0] >= before[1] for before, after in pairwise(bars))
    for source in schedule.busy_seconds:
        for target in schedule.busy_seconds:
            sends = [s for s in schedule.sends if (s.source, s.target) == (source, target)]
            times = sorted((s.start_seconds, s.end_seconds) for s in sends)
            assert all(after[0] >= before[1] for before, after in pairwise(times))


@given(placed_steps(), st.sampled_from([2, 4]))
def test_one_forward_one_backward_holds_no_more_than_gpipe_but_for_what_arrives_early(case, count: int) -> None:
    costed, placement = case
    programs = cut_or_skip(costed, placement)
    assume(len(programs.stages) == len(set(programs.stages)))
    some, all_of_them = (run(costed, programs, count, kind) for kind in (ONE_F_ONE_B, GPIPE))
    backward = {name for program in programs.backward for name in program.outputs}
    for device in some.peak:
        early = sum(send.size_bytes for send in some.sends if send.target == device and send.tensor in backward)
        assert some.peak[device].total_bytes <= all_of_them.peak[device].total_bytes + early


@given(placed_steps(num_devices=1))
def test_one_microbatch_on_one_device_takes_the_plain_sum(case) -> None:
    costed, placement = case
    programs = cut_or_skip(costed, placement)
    total = sum(cost.seconds for cost in StageCosts(costed).all(programs))
    for kind in (GPIPE, ONE_F_ONE_B, SEQUENTIAL):
        assert run(costed, programs, 1, kind).step_seconds == pytest.approx(total)


@given(cases)
def test_what_is_held_at_the_end_is_variables_and_at_most_results(case) -> None:
    (costed, placement), count, kind = case
    schedule = run(costed, cut_or_skip(costed, placement), count, kind)
    for device, use in schedule.peak.items():
        variables = use.parameter_bytes + use.slot_bytes + use.state_bytes
        assert schedule.memory[device][-1][1] == variables
        assert max(size for _, size in schedule.memory[device]) == use.total_bytes
        assert min(size for _, size in schedule.memory[device]) >= variables


# -- links that several transfers share -------------------------------------------------------------------------------


def behind_adapters(costed: CostedGraph, bandwidth: float) -> CostedGraph:
    """The same with device 0 on one host and the others on another, each host behind an adapter."""
    count = len(costed.topology.devices)
    hosts = [frozenset({0}), frozenset(range(1, count))]
    nics = [Uplink(name=f"nic {index}", devices=on, link=link(0.0, bandwidth)) for index, on in enumerate(hosts)]
    return replace(costed, topology=replace(costed.topology, uplinks=tuple(nics)))


@given(cases)
def test_an_adapter_wide_enough_for_all_changes_nothing(case) -> None:
    (costed, placement), count, kind = case
    free = run(costed, cut_or_skip(costed, placement), count, kind)
    wide = behind_adapters(costed, 2.0**60)
    shared = run(wide, cut_up(wide, placement), count, kind)
    assert shared.step_seconds == pytest.approx(free.step_seconds)
    assert shared.busy_seconds == pytest.approx(free.busy_seconds)
    assert len(shared.sends) == len(free.sends)
    assert sorted((b.action, b.device) for b in shared.timeline) == sorted((b.action, b.device) for b in free.timeline)
    for name, use in free.peak.items():
        assert shared.peak[name].total_bytes == use.total_bytes


@given(cases_without_waits, st.sampled_from([64.0, 256.0, 1024.0]))
def test_no_step_is_faster_for_sharing(case, bandwidth: float) -> None:
    """Devices keep to the order of the schedule, so that only waiting can be added."""
    (costed, placement), count, kind = case
    free = run(costed, cut_or_skip(costed, placement), count, kind)
    narrow = behind_adapters(costed, bandwidth)
    shared = run(narrow, cut_up(narrow, placement), count, kind)
    assert shared.step_seconds >= free.step_seconds * (1 - 1e-9)
    first_device = costed.topology.devices[0].name
    for source in (True, False):
        ends = [(s.source == first_device, s.target == first_device) for s in shared.sends]
        crossing = [s for s, (leaves, arrives) in zip(shared.sends, ends, strict=True) if source == leaves != arrives]
        if crossing:
            first, last = min(s.start_seconds for s in crossing), max(s.end_seconds for s in crossing)
            assert last - first >= sum(s.size_bytes for s in crossing) / bandwidth * (1 - 1e-9)


@given(placed_steps(num_devices=2, kind="CPU"), counts, schedules)
def test_between_two_devices_a_narrower_adapter_never_helps(case, count: int, kind: ScheduleKind) -> None:
    """One link each way, which carries one value at a time: there is no order that could change."""
    costed, placement = case
    cut_or_skip(costed, placement)
    steps = []
    for bandwidth in (32.0, 100.0, 256.0, 2.0**60):
        narrow = behind_adapters(costed, bandwidth)
        steps.append(run(narrow, cut_up(narrow, placement), count, kind).step_seconds)
    assert all(slower >= faster * (1 - 1e-9) for slower, faster in pairwise(steps))
