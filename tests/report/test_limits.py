"""What limits a step: plans made by hand, with one thing that limits each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.ir.plan import Baseline, Considered, LinkInfo, Objective, Origin, PlanDocument, PlannedTransfer
from partitioner.report.limit_kinds import KINDS, Limit, LimitKind
from partitioner.report.limits import LEAST_LOSS, limits
from tests.plan_memory import with_memory
from tests.timelines import GPU0, GPU1, timeline

MS = 1e-3


def of(plan: PlanDocument, step: float, first: float, second: float) -> PlanDocument:
    """The split plan whose step and devices take these milliseconds."""
    stages = tuple(
        replace(stage, compute_seconds=seconds * MS)
        for stage, seconds in zip(plan.stages, (first, second), strict=True)
    )
    idle = 1 - (first + second) / (2 * step)
    predicted = replace(plan.predicted, step_seconds=step * MS, bubble_fraction=idle)
    return replace(plan, stages=stages, predicted=predicted, baselines=(), considered=())


def on_a_slow_link(plan: PlanDocument) -> PlanDocument:
    """1 ms there, 6 ms on the way, 1 ms at the other end."""
    link = LinkInfo(
        name="pcie3",
        origin=Origin.CATALOGUE,
        latency_seconds=0.0,
        bandwidth_bytes_per_second=1e9,
        num_pairs=2,
        sent_bytes=6_000_000,
        pairs=((GPU0, GPU1), (GPU1, GPU0)),
    )
    sent = PlannedTransfer(
        op="flatten/Reshape",
        layer="flatten",
        source=GPU0,
        target=GPU1,
        size_bytes=6_000_000,
        start_seconds=1 * MS,
        end_seconds=7 * MS,
    )
    bars = timeline({GPU0: "0F0 . . . . . . .", GPU1: ". . . . . . . 1F0"}, slot_seconds=MS)
    return replace(of(plan, 8, 1, 1), links=(link,), transfers=(sent,), timeline=bars)


def too_large(plan: PlanDocument) -> PlanDocument:
    """One device would take 4 ms of the 10, and does not fit."""
    plan = replace(of(plan, 10, 5, 5), baselines=(Baseline(name="single-device", step_seconds=4 * MS, fits=False),))
    return with_memory(plan)


@pytest.fixture
def cases(split_plan: PlanDocument) -> dict[LimitKind, PlanDocument]:
    """Plans in which it is clear what limits them."""
    return {
        LimitKind.COMPUTE: of(split_plan, 10, 9, 9),
        LimitKind.IMBALANCE: of(split_plan, 10, 9, 1),
        LimitKind.LINK: on_a_slow_link(split_plan),
        LimitKind.BUBBLE: of(split_plan, 10, 5, 5),
        LimitKind.MEMORY: too_large(split_plan),
    }


SENTENCES = {
    LimitKind.COMPUTE: "compute limits the step: devices compute 9.00 ms of 10.0 ms (90 %) on average",
    LimitKind.IMBALANCE: "imbalance limits the step: stage 0 on GPU:0 computes 9.00 ms of 10.0 ms (90 %), "
    "devices on average 5.00 ms",
    LimitKind.LINK: "the link pcie3 limits the step: devices wait 6.00 ms of 8.00 ms (75 %) for tensors on their way",
    LimitKind.BUBBLE: "the bubble limits the step: GPU:0 waits 5.00 ms of 10.0 ms (50 %) for others and links",
    LimitKind.MEMORY: "memory limits the step: single-device would take 4.00 ms (60 % less) and does not fit; "
    "GPU:1 holds 100 MiB / 0 B",
}
SHARES = {
    LimitKind.COMPUTE: 0.9,
    LimitKind.IMBALANCE: 0.4,
    LimitKind.LINK: 0.75,
    LimitKind.BUBBLE: 0.5,
    LimitKind.MEMORY: 0.6,
}


@pytest.mark.parametrize("kind", LimitKind)
def test_the_true_bottleneck_comes_first(cases: dict[LimitKind, PlanDocument], kind: LimitKind) -> None:
    first, *_ = limits(cases[kind])
    assert (first.kind, first.sentence) == (kind, SENTENCES[kind])
    assert first.share == pytest.approx(SHARES[kind])


@pytest.mark.parametrize("kind", LimitKind)
def test_all_but_memory_add_up_to_the_step(cases: dict[LimitKind, PlanDocument], kind: LimitKind) -> None:
    shares = [limit.share for limit in limits(cases[kind]) if limit.kind is not LimitKind.MEMORY]
    assert sum(shares) == pytest.approx(1.0)


def test_every_kind_has_its_function() -> None:
    assert [kind.__name__ for kind in KINDS] == list(LimitKind)


def test_small_losses_leave_compute_first(split_plan: PlanDocument) -> None:
    below, above = of(split_plan, 100, 81, 81), of(split_plan, 100, 79, 79)
    assert LEAST_LOSS == 0.2
    assert limits(below)[0].kind is LimitKind.COMPUTE
    assert limits(above)[0].kind is LimitKind.BUBBLE


def test_memory_that_costs_little_is_named_after_a_loss(split_plan: PlanDocument) -> None:
    kept = Considered(
        num_stages=2,
        num_microbatches=4,
        schedule="gpipe",
        num_recomputed=0,
        step_seconds=8.5 * MS,
        largest_peak_bytes=1 << 40,
        fits=False,
    )
    plan = replace(of(split_plan, 10, 5, 5), considered=(kept,))
    assert [limit.kind for limit in limits(plan)] == ["bubble", "compute", "memory"]
    said = _of(plan, LimitKind.MEMORY).sentence
    assert "2 stages in 4 microbatches, schedule gpipe, no stage recomputed would take 8.50 ms (15 % less)" in said
    fitting = replace(plan, considered=(replace(kept, fits=True),))
    assert [limit.kind for limit in limits(fitting)] == ["bubble", "compute"]


def test_memory_that_is_the_objective_comes_first(split_plan: PlanDocument) -> None:
    plan = replace(with_memory(of(split_plan, 10, 5, 5)), objective=Objective.MEMORY)
    first = limits(plan)[0]
    assert first.sentence == "memory limits the step, as the objective; GPU:1 holds 100 MiB / 0 B"


def test_layers_that_compute_longest_are_responsible(split_plan: PlanDocument) -> None:
    shares = {"conv2d": 0.1, "conv2d_1": 0.5, "flatten": 0.05, "max_pooling2d": 0.2, "dense": 0.15}
    layers = tuple(replace(layer, compute_share=shares.get(layer.name, 0.0)) for layer in split_plan.layers)
    plan = replace(of(split_plan, 10, 9, 1), layers=layers)
    assert _of(plan, LimitKind.COMPUTE).layers == ("conv2d_1", "max_pooling2d", "dense")
    assert _of(plan, LimitKind.IMBALANCE).layers == ("conv2d_1", "max_pooling2d", "conv2d")


def test_tensors_on_the_way_and_tensors_held_are_responsible(split_plan: PlanDocument) -> None:
    link = _of(on_a_slow_link(split_plan), LimitKind.LINK)
    assert link.tensors == ("flatten/Reshape: 5.7 MiB from GPU:0 to GPU:1, 6.00 ms",)
    assert (link.layers, link.devices) == (("flatten",), ("GPU:0", "GPU:1"))
    plan = too_large(split_plan)
    memory = _of(replace(plan, memory=plan.memory[:1]), LimitKind.MEMORY)
    assert memory.tensors == ("conv2d/Relu: 64.0 MiB", "max_pooling2d/MaxPool: 16.0 MiB")


def test_updates_count_as_compute(split_plan: PlanDocument) -> None:
    """Stages have 1 ms each; the bars have 1 ms of updates more, and 0.5 ms of each device are in no bar."""
    plan = of(split_plan, 3, 1, 1)
    bars = timeline({GPU0: ". 0F0 U", GPU1: ". 1F0 U"}, slot_seconds=MS)
    plan = replace(plan, timeline=bars, predicted=replace(plan.predicted, bubble_fraction=1 / 6))
    assert _of(plan, LimitKind.COMPUTE).share == pytest.approx(5 / 6)
    assert _of(plan, LimitKind.BUBBLE).share == pytest.approx(1 / 6)


def test_sums_of_gradients_are_the_link_of_replicas(split_plan: PlanDocument) -> None:
    exchange = PlannedTransfer(
        op="", layer="", source=GPU0, target="", size_bytes=4 << 20, start_seconds=2 * MS, end_seconds=4 * MS
    )
    bars = timeline({GPU0: "0F0 0B0 . . U"}, slot_seconds=MS)
    stage = replace(split_plan.stages[0], compute_seconds=2 * MS, send_bytes=4 << 20)
    plan = replace(
        split_plan,
        num_replicas=2,
        num_stages=1,
        stages=(stage, replace(stage, replica=1, device=GPU1)),
        predicted=replace(split_plan.predicted, step_seconds=5 * MS, bubble_fraction=0.4),
        baselines=(),
        timeline=bars,
        transfers=(exchange,),
    )
    first = limits(plan)[0]
    assert (first.kind, first.share) == (LimitKind.LINK, pytest.approx(0.4))
    assert first.tensors == ("gradients, to be summed over replicas: 4.0 MiB from GPU:0, 2.00 ms",)


def _of(plan: PlanDocument, kind: LimitKind) -> Limit:
    return next(limit for limit in limits(plan) if limit.kind is kind)
