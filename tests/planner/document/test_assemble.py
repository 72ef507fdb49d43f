"""A plan written from a search result made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from documents import MODEL, found_at, plan_of, split_training
from graphs import Builder, cut_up, link, on, pipeline, topology

from partitioner.ir.op_graph import VariableKind
from partitioner.ir.plan import (
    Considered,
    DeviceInfo,
    Objective,
    Origin,
    PlanDocument,
    PlannedEdge,
    StageEdge,
    Strategy,
)
from partitioner.planner.document.assemble import forward_boxes, plan_document
from partitioner.planner.model.op_devices import op_devices
from partitioner.planner.simulate.pipelined import simulate_stages
from partitioner.stages.schedules import ScheduleKind

GPU0, GPU1 = (f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(2))
CPU0 = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_stages_by_hand() -> None:
    costed, placement = split_training()
    first, second = plan_of(costed, placement).stages
    assert (first.index, first.device, first.layers, first.num_ops) == (0, GPU1, ("layer0",), 5)
    assert (second.index, second.device, second.layers, second.num_ops) == (1, GPU0, ("layer1",), 5)
    assert (first.parameter_bytes, second.parameter_bytes) == (1024, 1024)
    assert (first.compute_seconds, second.compute_seconds) == (4.0, 5.0)
    assert (first.send_bytes, second.send_bytes) == (256, 256)  # f0's output there, b1's gradient back


def test_predicted_by_hand() -> None:
    costed, placement = split_training()
    plan = plan_of(costed, placement)
    predicted = plan.predicted
    # f0 f1 loss b1 | b0 d0 u0 on one device while the other runs d1 u1: 4 + 3 s and a hair for two transfers
    assert predicted.step_seconds == predicted.latency_seconds == pytest.approx(7.0)
    assert predicted.bottleneck_stage == 1
    assert predicted.bubble_fraction == pytest.approx(1 - 9 / 14)
    assert set(predicted.peak_bytes) == {GPU0, GPU1}
    assert (plan.strategy, plan.requested_strategy) == (Strategy.LAYER_SPLIT, Strategy.AUTO)
    assert (plan.num_stages, plan.num_replicas, plan.num_microbatches) == (2, 1, 1)
    assert plan.notes == ("from the search",)


def test_one_device_is_a_single_plan_without_a_bubble() -> None:
    costed, placement = split_training()
    plan = plan_of(costed, dict.fromkeys(placement, 1))
    assert (plan.strategy, plan.num_stages) == (Strategy.SINGLE, 1)
    assert plan.predicted.bubble_fraction == 0.0


def test_layers_have_their_share_of_the_seconds() -> None:
    """f, b, d, u of each layer and the loss take 1 s each."""
    costed, placement = split_training()
    shares = {box.name: box.compute_share for box in plan_of(costed, placement).layers}
    assert shares == {"x": 0.0, "layer0": pytest.approx(4 / 9), "layer1": pytest.approx(4 / 9), "loss": 0.0}


def test_boxes_and_arrows() -> None:
    costed, placement = split_training()
    plan = plan_of(costed, placement)
    assert [(box.name, box.class_name, box.device) for box in plan.layers] == [
        ("x", "InputLayer", GPU1),
        ("layer0", "Dense", GPU1),
        ("layer1", "Dense", GPU0),
        ("loss", "Loss", GPU0),
    ]
    assert plan.edges == (
        PlannedEdge(source="x", target="layer0", size_bytes=256),
        PlannedEdge(source="layer0", target="layer1", size_bytes=256, gradient_bytes=256),
        PlannedEdge(source="layer1", target="loss", size_bytes=256),
    )
    assert plan.stage_edges == (StageEdge(source=0, target=1, size_bytes=256, gradient_bytes=256),)
    assert forward_boxes(costed.graph) == ["x", "layer0", "layer1", "loss"]


def test_a_tensor_that_a_layer_reads_twice_is_one_arrow_of_its_size() -> None:
    made = Builder()
    made.add("a", 1.0, layer="A", size_bytes=400)
    made.add("b1", 1.0, "a", layer="B")
    made.add("b2", 1.0, "a", "b1", layer="B")
    costed = made.costed()
    (edge,) = plan_of(costed, dict.fromkeys(costed.graph.op, 0)).edges
    assert edge == PlannedEdge(source="A", target="B", size_bytes=400)


def test_ops_without_a_gpu_kernel_go_to_the_host_which_is_listed() -> None:
    made = Builder()
    made.add("a", 1.0, layer="A")
    made.add("print", 1.0, "a", type="PrintV2", layer="A", host_only=True)
    costed = made.costed()
    assert op_devices(costed.graph, {"a": 1, "print": 1}, [GPU0, GPU1]) == {"a": GPU1, "print": CPU0}
    plan = plan_of(costed, {"a": 1, "print": 1})
    assert [info.name for info in plan.devices] == [GPU0, GPU1, CPU0]
    assert plan.notes[-1] == "ops without a GPU kernel run on the host: PrintV2"


def test_the_parameters_of_a_stage_are_those_of_its_ops() -> None:
    made = Builder()
    made.variable("w", 1024, layer="A")
    made.variable("m", 4096, VariableKind.SLOT, layer="A")
    made.add("a", 1.0, layer="A", variables=["w", "m"])
    made.add("b", 1.0, "a", layer="B")
    costed = made.costed()
    stages = plan_of(costed, {"a": 0, "b": 1}).stages
    assert [stage.parameter_bytes for stage in stages] == [1024, 0]


def staged_plan(num_microbatches: int = 4, recompute: tuple[int, ...] = ()) -> PlanDocument:
    """Four layers in four stages on two devices, dealt round robin; a layer takes 1 s forward and 1 s backward."""
    costed = pipeline(4, forward=1.0, backward=1.0).costed(topology(2, wire=link(0.0, 2.0**60)))
    placement = dict(on(costed, **{f"{kind}{i}": i % 2 for kind in "rfdbu" for i in range(4)}))
    programs = cut_up(costed, placement, recompute)
    kind = ScheduleKind.INTERLEAVED
    staged = simulate_stages(programs, costed, num_microbatches=num_microbatches, schedule=kind)
    unpipelined = found_at(costed, placement)
    result = replace(
        unpipelined,
        schedule=staged.schedule,
        num_microbatches=num_microbatches,
        schedule_kind=kind.value,
        recompute=programs.recomputed,
        staged=staged,
        programs=programs,
        considered=(
            Considered(
                num_stages=4, num_microbatches=4, schedule="interleaved", num_recomputed=0, step_seconds=18.0,
                largest_peak_bytes=1, fits=True,
            ),
        ),
    )  # fmt: skip
    infos = [
        DeviceInfo(name=placed.name, hardware="test", origin=Origin.ASSUMED, memory_bytes=placed.memory_bytes)
        for placed in costed.topology.devices
    ]
    return plan_document(costed, result, infos, model=MODEL, requested=Strategy.AUTO, objective=Objective.THROUGHPUT)


def test_a_staged_plan_has_a_stage_per_stage_program() -> None:
    plan = staged_plan()
    assert (plan.num_stages, plan.num_microbatches, plan.schedule) == (4, 4, "interleaved")
    assert plan.strategy is Strategy.LAYER_SPLIT
    stages = plan.stages
    assert [(s.index, s.device, s.layers) for s in stages] == [
        (0, GPU0, ("layer0",)),
        (1, GPU1, ("layer1",)),
        (2, GPU0, ("layer2",)),
        (3, GPU1, ("layer3",)),
    ]
    assert [s.parameter_bytes for s in stages] == [4096] * 4
    assert [s.compute_seconds for s in stages] == pytest.approx([8.0] * 4, abs=0.01)
    # Per microbatch 1024 bytes forward and 256 backward, but nothing behind the last stage and before the first.
    assert [s.send_bytes for s in stages] == [4096, 4096 + 1024, 4096 + 1024, 1024]
    # f, d, r and u of each layer, b of all but the first; x counts for the first stage.
    assert sum(s.num_ops for s in stages) == len(plan.placement)
    assert [s.num_ops for s in stages] == [5, 5, 5, 5]
    assert plan.considered[0].step_seconds == 18.0


def test_figures_of_a_staged_plan() -> None:
    predicted = staged_plan().predicted
    assert predicted.step_seconds == predicted.latency_seconds == pytest.approx(18.0, abs=0.02)
    # 16 of 18 seconds are work on each device.
    assert predicted.bubble_fraction == pytest.approx(1 - 16 / 18, abs=0.002)
    assert set(predicted.peak_bytes) == {GPU0, GPU1}


def test_the_timeline_has_every_pass_and_update_up_to_a_limit() -> None:
    timeline = staged_plan().timeline
    assert len(timeline) == 2 * 4 * 4 + 2
    assert {bar.action for bar in timeline} == {f"{s}{k}{m}" for s in range(4) for k in "FB" for m in range(4)} | {"U"}
    assert len(staged_plan(512).timeline) == 2000


def test_stages_say_whether_they_recompute() -> None:
    assert [stage.recompute for stage in staged_plan(recompute=(0, 2)).stages] == [True, False, True, False]


def test_stages_of_one_device_are_a_single_plan() -> None:
    costed = pipeline(2).costed(topology(1))
    programs = cut_up(costed, on(costed))
    staged = simulate_stages(programs, costed, num_microbatches=2, schedule=ScheduleKind.SEQUENTIAL)
    result = replace(
        found_at(costed, dict(on(costed))), schedule=staged.schedule, num_microbatches=2, staged=staged,
        programs=programs,
    )  # fmt: skip
    infos = [DeviceInfo(name=GPU0, hardware="test", origin=Origin.ASSUMED, memory_bytes=2**40)]
    plan = plan_document(costed, result, infos, model=MODEL, requested=Strategy.AUTO, objective=Objective.THROUGHPUT)
    assert (plan.strategy, plan.num_stages, plan.num_microbatches) == (Strategy.SINGLE, 1, 2)
