"""Cuts into stages: bounds hold for every cut, estimates find good ones, limits and constraints are kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from bounding import closer_steps
from cuts import all_cuts, chains
from graphs import Builder, link, microbatching, pinned, pipeline, random_steps, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.calls import CallCost
from cost_models.topology import Topology
from partitioner.deadline import Deadline
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.evaluator import PipelineEvaluator, Shape
from partitioner.planner.pipeline.least_share import least_interleaved_share
from partitioner.planner.pipeline.near_cut import near_cut
from partitioner.planner.pipeline.search import PipelineSearch
from partitioner.planner.pipeline.search_space import Recompute, Recomputed
from partitioner.planner.pipeline.solve.problem import BoundRequest, LeastStep
from partitioner.planner.pipeline.split import StageSplit
from partitioner.planner.pipeline.stage_sequence import FULL, KEEPS, SELECTIVE
from partitioner.stages.schedules import ScheduleKind

CALL_SECONDS = CallCost().seconds
FREE = link(0.0, 2.0**60)
GPIPE, ONE_F_ONE_B, SEQUENTIAL, ZB_H1, ZB_H2, ZB_V = (
    ScheduleKind(name) for name in ("gpipe", "1f1b", "sequential", "zb-h1", "zb-h2", "zb-v")
)
KINDS = st.sampled_from([GPIPE, ONE_F_ONE_B, SEQUENTIAL, ZB_H1, ZB_H2])


def check_bound(
    costed: CostedGraph, devices: Sequence[int], count: int, kind: ScheduleKind, recompute: Recompute = "none"
) -> None:
    """No cut that fits, with any of the stages that may recompute, is simulated to end before the bound."""
    choices = microbatching(costed, count, recompute=recompute, adding=True)
    evaluator = PipelineEvaluator(costed, coarsen(costed), choices)
    if len(evaluator.order) < len(devices):
        return
    shape = (tuple(devices), count, kind)
    evaluator.look_closer([shape], 1e9, 2.0, ask=closer_steps)
    bound = max(evaluator.cut_bound_seconds(*shape), evaluator.work_bound_seconds(*shape))
    ways = {"none": (KEEPS,), "all": (FULL,), "auto": (KEEPS, SELECTIVE, FULL)}[recompute]
    for chosen in product(ways, repeat=len(devices)):
        full, selective = (frozenset(np.flatnonzero(np.equal(chosen, way)).tolist()) for way in (FULL, SELECTIVE))
        again = Recomputed(full, selective)
        for candidate in all_cuts(evaluator, devices, count, kind, again):
            if candidate.fits:
                assert candidate.staged.step_seconds >= bound * (1 - 1e-9)


@settings(max_examples=60)
@given(chains(), st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), KINDS, st.sampled_from(["CPU", "GPU"]))
def test_no_cut_of_a_chain_ends_before_the_bound(made: Builder, num_stages: int, count: int, kind, devices) -> None:
    check_bound(made.costed(topology(num_stages, kind=devices)), range(num_stages), count, kind)


@settings(max_examples=40)
@given(chains(), st.permutations([0, 1, 2]), st.sampled_from([2, 4, 8]), KINDS)
def test_no_cut_over_links_that_differ_ends_before_the_bound(made: Builder, devices, count: int, kind) -> None:
    placed = topology(3, kind="CPU").devices
    machines = Topology.of_hosts(placed, [0, 0, 1], within=link(0.0, 4096.0), between=link(1.5, 512.0))
    check_bound(made.costed(machines), devices, count, kind)


def test_microbatches_in_flight_must_come_back_before_others_start() -> None:
    """One microbatch takes 1 s there and 2 s back in each of two stages, and 1 s over the link. Of two in flight, one
    passes all in 8 s, so eight take 32 s; the first stage is idle for 4 s at first, and for 3 s at last: 31 s."""
    costed = pipeline(2, forward=8.0, backward=16.0).costed(topology(2, wire=link(1.0, 2.0**60), kind="CPU"))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8))
    assert evaluator.cut_bound_seconds((0, 1), 8, ONE_F_ONE_B) == pytest.approx(32.0, rel=1e-3)
    cut = evaluator.cut((0, 1), 8, ONE_F_ONE_B)
    assert cut is not None
    simulated = evaluator(cut.assignment, 8, ONE_F_ONE_B)
    # The last microbatch starts while the one before comes back: 8 s for each two, then 3 s.
    assert simulated is not None
    assert simulated.staged.step_seconds == pytest.approx(35.0, rel=1e-3)


@settings(max_examples=40)
@given(random_steps(), st.integers(2, 3), st.sampled_from([1, 2, 4]), KINDS)
def test_no_cut_of_any_step_ends_before_the_bound(made: Builder, num_stages: int, count: int, kind) -> None:
    check_bound(made.costed(topology(num_stages, wire=FREE)), range(num_stages), count, kind)


@settings(max_examples=60)
@given(
    st.one_of(chains(), random_steps()), st.integers(1, 3), st.sampled_from([1, 2, 4]), KINDS,
    st.sampled_from([2**10, 2**11, 2**12, 2**13]), st.sampled_from(["none", "auto", "all"]),
)  # fmt: skip
def test_no_cut_that_fits_ends_before_the_bound(
    made: Builder, num_stages: int, count: int, kind, memory_bytes: int, recompute
) -> None:
    costed = made.costed(topology(num_stages, wire=FREE, memory_bytes=memory_bytes))
    check_bound(costed, range(num_stages), count, kind, recompute)


@settings(max_examples=60)
@given(
    st.one_of(chains(), random_steps()), st.sampled_from([(2, 2), (2, 4), (2, 8), (3, 3), (3, 6)]),
    st.sampled_from([2, 3]), st.sampled_from([2**11, 2**13, 2**30]), st.sampled_from(["none", "auto"]),
)  # fmt: skip
def test_no_interleaved_cut_that_fits_ends_before_the_bound(
    made: Builder, shape: tuple[int, int], rounds: int, memory_bytes: int, recompute
) -> None:
    num_devices, count = shape
    costed = made.costed(topology(num_devices, wire=FREE, memory_bytes=memory_bytes))
    check_bound(costed, [*range(num_devices)] * rounds, count, ScheduleKind.INTERLEAVED, recompute)


@settings(max_examples=40)
@given(
    st.one_of(chains(), random_steps()), st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([2**11, 2**13, 2**30]), st.sampled_from(["none", "auto", "all"]),
)  # fmt: skip
def test_no_cut_in_a_v_that_fits_ends_before_the_bound(made: Builder, count: int, memory_bytes: int, recompute) -> None:
    costed = made.costed(topology(2, wire=FREE, memory_bytes=memory_bytes))
    check_bound(costed, ZB_V.stages_on(range(2)), count, ZB_V, recompute)


@pytest.mark.parametrize("rounds", [2, 3, 4, 8])
@pytest.mark.parametrize(("num_devices", "count"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 64)])
def test_the_least_interleaved_share_is_between_the_work_and_equal_stages(
    num_devices: int, count: int, rounds: int
) -> None:
    work, bubble = count / num_devices, (num_devices - 1) / (rounds * num_devices)
    assert work + 0.4 * bubble < least_interleaved_share(num_devices, rounds, count) <= work + bubble


def test_interleaved_stages_recompute_what_their_devices_do_not_keep_wherever_they_are_cut() -> None:
    """Each of eight layers saves 256 KiB of a microbatch, and takes 2 s forward; with backwards all take 48 s. A device
    of 1 MiB keeps it of two microbatches at the least, the other of one, so that both keep 1.5 MiB of one, and a fourth
    of the forwards runs again. (Inputs and variables are small.)"""
    made, shape = (
        pipeline(8, forward=8.0, backward=16.0, saved_bytes=2**20),
        ((0, 1, 0, 1), 4, ScheduleKind.INTERLEAVED),
    )
    bounds = {}
    for memory_bytes in (2**20, 2**30):
        costed = made.costed(topology(2, wire=FREE, memory_bytes=memory_bytes))
        evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4))
        bounds[memory_bytes] = evaluator.cut_bound_seconds(*shape)
    assert bounds[2**20] / bounds[2**30] == pytest.approx((48 + 16 / 4) / 48, rel=5e-3)


@settings(max_examples=25)
@given(chains(), st.integers(2, 3), st.sampled_from([2, 4, 8]), st.sampled_from([GPIPE, ONE_F_ONE_B, ZB_H1, ZB_H2]))
def test_the_best_cut_is_simulated_nearly_as_fast_as_any(made: Builder, num_stages: int, count: int, kind) -> None:
    costed = made.costed(topology(num_stages, wire=FREE))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, count, recompute="none"))
    if len(evaluator.order) < num_stages:
        return
    cut = evaluator.cut(tuple(range(num_stages)), count, kind)
    assert cut is not None
    simulated = evaluator(cut.assignment, count, kind)
    steps = [candidate.staged.step_seconds for candidate in all_cuts(evaluator, range(num_stages), count, kind)]
    if simulated is not None and steps:
        assert simulated.staged.step_seconds <= 1.15 * min(steps)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # (M + S - 1) microbatches of an eighth of 24 s, of two calls each, and the update's call.
        (GPIPE, (8 + 4 - 1) * (24.0 / 8 + 2 * CALL_SECONDS)),
        (ONE_F_ONE_B, (8 + 4 - 1) * (24.0 / 8 + 2 * CALL_SECONDS)),
        # The work, and (S - 1)(F + B - W), where the gradients of weights are all of the backward. Three calls of each
        # microbatch in the last stage, one in each stage before it.
        (ZB_H1, 24.0 + (4 - 1) * 1.0 + (8 * 3 + 3) * CALL_SECONDS),
        # The same, for (S - 1)F alone.
        (ZB_H2, 24.0 + (4 - 1) * 1.0 + (8 * 3 + 3) * CALL_SECONDS),
    ],
)
def test_equal_stages_take_what_the_papers_say(kind: ScheduleKind, expected: float) -> None:
    costed = pipeline(4, forward=8.0, backward=16.0).costed(topology(4, wire=FREE))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8))
    bound = evaluator.cut_bound_seconds((0, 1, 2, 3), 8, kind)
    assert bound == pytest.approx(expected, rel=1e-4)
    cut = evaluator.cut((0, 1, 2, 3), 8, kind)
    assert cut is not None
    simulated = evaluator(cut.assignment, 8, kind)
    assert simulated is not None
    assert simulated.staged.step_seconds == pytest.approx(expected, rel=1e-3)


def test_a_v_of_equal_halves_fills_in_half_of_the_time() -> None:
    """Of eight layers, each takes a microbatch 1 s forward, 1 s for the error of the layer before, of which the first
    has none, and 1 s for gradients of weights. Of four devices with two of them each all but the first work for 48 s,
    and the last one begins behind three."""
    costed = pipeline(8, forward=8.0, backward=8.0, error=8.0).costed(topology(4, wire=FREE))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8, recompute="none"))
    devices = ZB_V.stages_on(range(4))
    cut = evaluator.cut(devices, 8, ZB_V)
    assert cut is not None
    near = evaluator.near_cut(Shape(devices, 8, ZB_V), cut)
    assert near.ends == (1, 2, 3, 5, 6, 7, 8)
    simulated = evaluator(near.assignment, 8, ZB_V)
    assert simulated is not None
    assert simulated.staged.step_seconds == pytest.approx(8 * 2 * 3.0 + 3 * 1.0, rel=1e-3)
    assert near.seconds == pytest.approx(simulated.staged.step_seconds, rel=1e-3)
    assert evaluator.cut_bound_seconds(devices, 8, ZB_V) <= near.seconds


@settings(max_examples=25)
@given(chains(), st.sampled_from([2, 4, 8]), st.sampled_from([ONE_F_ONE_B, ZB_H2, ZB_V, ScheduleKind.INTERLEAVED]))
def test_a_cut_near_the_best_of_the_dynamic_program_is_nearly_as_fast_as_any(made: Builder, count: int, kind) -> None:
    """Bug: a Llama was cut into interleaved stages for 888 ms, where moving single ends leads to 835."""
    costed, shape = made.costed(topology(2, wire=FREE)), Shape(kind.stages_on((0, 1)), count, kind)
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, count, recompute="none"))
    if len(evaluator.order) < len(shape.devices) or (cut := evaluator.cut(*shape)) is None:
        return
    near = evaluator.near_cut(shape, cut)
    assert near.seconds <= cut.seconds
    simulated = evaluator(near.assignment, count, kind)
    steps = [candidate.staged.step_seconds for candidate in all_cuts(evaluator, *shape)]
    if simulated is not None and steps:
        assert simulated.staged.step_seconds <= 1.15 * min(steps)


def test_what_a_stage_has_too_much_goes_to_one_that_is_not_next_to_it() -> None:
    """Of nine equal layers four, three and two are cut; to move one end alone only makes another stage have four."""
    costed = pipeline(9, forward=9.0, backward=18.0).costed(topology(3, wire=FREE))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8, recompute="none"))
    split = StageSplit(sequence=evaluator._sequence((0, 1, 2), 8, ZB_H2, "none"))
    assert near_cut(split, split.cut((4, 7, 9))).ends == (3, 6, 9)


@settings(max_examples=60)
@given(chains(), st.data())
def test_a_cut_is_looked_for_near_all_that_are_known(made: Builder, data: st.DataObject) -> None:
    """A Llama on eight H100 was planned at 856 ms and not at 836, as what is near a cut of the linear program took
    longer than what is near a slower one of the dynamic program."""
    costed, shape = made.costed(topology(2, wire=FREE)), Shape((0, 1, 0), 4, ZB_V)
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4, recompute="none"))
    count = len(evaluator.order)
    if count < 3 or (cut := evaluator.cut(*shape)) is None:
        return
    ends = data.draw(st.lists(st.integers(1, count - 1), min_size=2, max_size=2, unique=True).map(sorted))

    asked: list[BoundRequest] = []

    def ask(request: BoundRequest) -> list[LeastStep]:
        asked.append(request)
        return [LeastStep(seconds=problem.bound_seconds, ends=tuple(ends)) for problem in request.problems]

    evaluator.look_closer([shape], 1e9, 2.0, ask=ask)
    split = StageSplit(sequence=evaluator._sequence(*shape, "none"))
    starts = (cut, split.cut((*ends, count))) if asked else (cut,)
    alone = [near_cut(split, start).seconds for start in starts]
    assert evaluator.near_cut(shape, evaluator.cut(*shape)).seconds == min(alone)


def test_a_cut_that_leaves_memory_is_as_fast_as_those_near_the_same_ends() -> None:
    """Of a Llama on two hosts a stage lacked 1.7 GiB: with cheap ops run again a step took 916 ms, with ends near 883.

    Here four devices are cut evenly, and the first is to leave a layer.
    """
    made = pipeline(16, forward=8.0, backward=16.0, saved_bytes=2**20)
    costed = made.costed(topology(4, memory_bytes=2**30, wire=FREE))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8, recompute="auto"))
    devices = ONE_F_ONE_B.stages_on(range(4))
    roomy = evaluator.cut(devices, 8, ONE_F_ONE_B)
    assert roomy is not None
    spare = (2**30 - roomy.peak_bytes[0] + 1, 0, 0, 0)
    cut = evaluator.cut(devices, 8, ONE_F_ONE_B, spare_bytes=spare)
    split = StageSplit(sequence=evaluator._sequence(devices, 8, ONE_F_ONE_B, "auto"), spare_bytes=spare)
    assert cut is not None and cut.fits
    near = near_cut(split, split.cut(roomy.ends))
    assert cut.seconds <= near.seconds < split.cut(roomy.ends).seconds


@pytest.mark.parametrize("kind", [GPIPE, ONE_F_ONE_B, ZB_H1, ScheduleKind.INTERLEAVED])
def test_a_link_that_is_always_busy_delays_the_step(kind: ScheduleKind) -> None:
    """Bug: interleaved stages of a Llama on two hosts were estimated at 0.9 s and took 1.5: a link was always busy.

    Each of eight microbatches is sent for 16 s, and keeps devices busy for 3 s a layer.
    """
    made = pipeline(4, forward=8.0, backward=16.0, saved_bytes=2**10)
    costed = made.costed(topology(2, wire=link(0.0, 8.0), kind="CPU"))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 8, recompute="none"))
    cut = evaluator.cut((0, 1) * (2 if kind is ScheduleKind.INTERLEAVED else 1), 8, kind)
    assert cut is not None
    simulated = evaluator(cut.assignment, 8, kind)
    assert simulated is not None
    assert 8 * 16 <= cut.seconds <= 1.05 * simulated.staged.step_seconds


def test_items_stay_on_the_devices_that_are_allowed() -> None:
    costed = pipeline(4).costed(topology(2, wire=FREE))
    items = coarsen(costed, constraints=pinned(f0=0, f1=1))
    evaluator = PipelineEvaluator(costed, items, microbatching(costed, 4))
    cut = evaluator.cut((0, 1), 4, GPIPE)
    assert cut is not None
    assert [cut.assignment[items.item_of[f"f{i}"]] for i in range(4)] == [0, 1, 1, 1]
    backwards = PipelineEvaluator(costed, coarsen(costed, constraints=pinned(f0=1, f3=0)), microbatching(costed, 4))
    assert backwards.cut((0, 1), 4, GPIPE) is None


def test_updates_alone_are_no_stage() -> None:
    """With the counter of the optimizer alone behind a boundary, a cut was a step on one device, and no layer split."""
    made = pipeline(1, forward=8.0, backward=16.0)
    made.add("tail", 0.5, "f0", size_bytes=4)
    made.add("counter", 0.0, size_bytes=8, phase=Phase.UPDATE)
    costed = made.costed(topology(2, wire=link(latency_seconds=100.0)))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4))
    cut = evaluator.cut((0, 1), 4, GPIPE)
    assert cut is not None
    programs = evaluator.programs(cut.assignment)
    assert programs is not None
    assert len(programs.stages) == 2


def test_a_cut_leaves_the_bytes_that_are_to_be_spare() -> None:
    """Eight layers of 1 MiB on two devices of 6 MiB, of which 2 MiB are to be spare on the first."""
    costed = pipeline(8, forward=8.0, backward=16.0, parameter_bytes=2**20).costed(
        topology(2, wire=FREE, memory_bytes=6 * 2**20)
    )
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4))
    for spare, layers, megabytes in (((), 4, (4, 4)), ((2**21, 0), 3, (3, 5))):
        cut = evaluator.cut((0, 1), 4, ONE_F_ONE_B, spare_bytes=spare)
        assert cut is not None
        assert cut.assignment == (0,) * layers + (1,) * (8 - layers)
        assert tuple(round(size / 2**20) for size in cut.peak_bytes) == megabytes


def test_estimates_know_what_is_held_for_a_moment() -> None:
    """The same without spare bytes, where the first layer makes a tensor of 2 MiB of a microbatch and reads it."""
    made = pipeline(8, forward=8.0, backward=16.0, parameter_bytes=2**20)
    made.add("t", 0.0, "x", size_bytes=2**23, layer="layer0")
    made.add("s", 1.0, "t", size_bytes=4, layer="layer0")
    costed = made.costed(topology(2, wire=FREE, memory_bytes=int(5.5 * 2**20)))
    cut = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4)).cut((0, 1), 4, ONE_F_ONE_B)
    assert cut is not None
    assert (cut.assignment, cut.fits) == ((0,) * 3 + (1,) * 5, True)
    assert tuple(round(size / 2**20) for size in cut.peak_bytes) == (5, 5)


def test_a_cut_that_does_not_fit_as_estimated_is_followed_by_one_that_leaves_what_it_lacked() -> None:
    """The same, where the first layer has two such tensors of 1 MiB, which a device makes before it reads either."""
    made = pipeline(8, forward=8.0, backward=16.0, parameter_bytes=2**20)
    for name in "ab":
        made.add(f"t{name}", 1.0, "x", size_bytes=2**22, layer="layer0")
        made.add(f"s{name}", 1.0, f"t{name}", size_bytes=4, layer="layer0")
    costed = made.costed(topology(2, wire=FREE, memory_bytes=int(5.5 * 2**20)))
    choices = microbatching(costed, 4, schedules=(ONE_F_ONE_B,), recompute="none", unpipelined=False)
    search = PipelineSearch(
        evaluator=PipelineEvaluator(costed, coarsen(costed), choices),
        strategy=Strategy.LAYER_SPLIT,
        objective=Objective.THROUGHPUT,
        unpipelined_seconds=float("inf"),
        one_device=False,
        deadline=Deadline.after(60.0),
    )
    search.run()
    even, uneven = search.evaluator.candidates()
    assert even.over_bytes[0] > 0
    assert [candidate.assignment for candidate in search.eligible()] == [uneven.assignment] == [(0,) * 3 + (1,) * 5]


def test_stages_that_would_not_fit_recompute_or_are_cut_elsewhere() -> None:
    """Each layer saves 1 MiB of the batch; four microbatches of the first stage are alive in gpipe."""
    made = pipeline(8, forward=8.0, backward=16.0, saved_bytes=2**20)
    roomy = made.costed(topology(2, wire=FREE))
    evaluator = PipelineEvaluator(roomy, coarsen(roomy), microbatching(roomy, 4))
    cut = evaluator.cut((0, 1), 4, GPIPE)
    assert cut is not None
    assert not cut.recompute.stages
    tight = made.costed(topology(2, wire=FREE, memory_bytes=3 * 2**20))
    evaluator = PipelineEvaluator(tight, coarsen(tight), microbatching(tight, 4))
    again = evaluator.cut((0, 1), 4, GPIPE)
    assert again is not None
    assert again.recompute.stages == {0, 1}
    assert again.seconds > cut.seconds
    kept = PipelineEvaluator(tight, coarsen(tight), microbatching(tight, 4, recompute="none"))
    assert kept.cut_bound_seconds((0, 1), 4, GPIPE) == float("inf")
    assert kept.cut_bound_seconds((0, 1), 4, ONE_F_ONE_B) < float("inf")


@settings(max_examples=40)
@given(st.integers(8, 64), st.sampled_from([ONE_F_ONE_B, ScheduleKind.INTERLEAVED]), st.integers(1, 2**21))
def test_a_cut_with_more_room_is_no_slower_than_the_same_ends_with_more_recompute(
    mib: int, kind: ScheduleKind, spare: int
) -> None:
    """Bug: a Llama whose interleaved stages lacked 5 MB was cut anew, for 895 ms in place of 839, and left for 882."""
    made = pipeline(8, forward=8.0, backward=16.0, saved_bytes=2**20)
    costed = made.costed(topology(2, wire=FREE, memory_bytes=mib * 2**19))
    evaluator = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4))
    devices = (0, 1) * (2 if kind is ScheduleKind.INTERLEAVED else 1)
    roomy, other = evaluator.cut(devices, 4, kind), evaluator.cut(devices, 4, kind, spare_bytes=(spare, 0))
    assert roomy is not None
    assert other is not None
    split = StageSplit(sequence=evaluator._sequence(devices, 4, kind, "auto"), spare_bytes=(spare, 0))
    assert other.seconds <= split.cut(roomy.ends).seconds


@pytest.mark.parametrize(("mib", "again"), [(3, {0, 1, 2, 3}), (4, {0, 1, 2}), (5, {0, 1}), (6, {0}), (7, set())])
def test_stages_run_again_only_while_not_all_of_a_device_fit(mib: int, again: set[int]) -> None:
    """Bug: with an eighth of the memory each, 28 of 32 stages of a Llama ran ops again, in 45 of 75 GiB.

    Of four microbatches the stages of one device hold 4, 4, 2 and 2, of the other 4, 3, 2 and 1, each of half a MiB; to
    run again takes as much at a time.
    """
    made = pipeline(16, forward=8.0, backward=16.0, saved_bytes=2**20)
    costed = made.costed(topology(2, wire=FREE, memory_bytes=mib * 2**20))
    cut = PipelineEvaluator(costed, coarsen(costed), microbatching(costed, 4)).cut(
        (0, 1) * 4, 4, ScheduleKind.INTERLEAVED
    )
    assert cut is not None
    assert cut.fits
    assert cut.recompute == Recomputed(selective=frozenset(again))
