"""A plan on other graphs of its model: inference, renamed layers; and on another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from graphs import Builder, topology, training_chain

from partitioner.binding.transfer import rebase, transfer_placement
from partitioner.errors import UsageError
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import (
    DeviceInfo,
    ModelInfo,
    Origin,
    PlanDocument,
    PlannedLayer,
    Predicted,
    SolverInfo,
    Stage,
    Strategy,
)
from partitioner.ir.planned_ops import PlannedOps
from partitioner.planner.document.assemble import forward_boxes

D = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(2)]


def plan_of(graph: OpGraph, placement: Mapping[str, int]) -> PlanDocument:
    """A plan with the fields that matter when it is carried over."""
    layer_device = {op.layer: D[placement[op.name]] for op in graph.ops}
    used = list(dict.fromkeys(D[placement[op.name]] for op in graph.ops))
    return PlanDocument(
        model=ModelInfo(
            source="", name=graph.name, fingerprint=graph.fingerprint, num_ops=len(graph.ops),
            num_parameters=graph.num_parameters, batch_size=8, training=True,
        ),
        devices=tuple(
            DeviceInfo(name=name, hardware="test", origin=Origin.ASSUMED, memory_bytes=1) for name in D
        ),
        strategy=Strategy.LAYER_SPLIT, num_replicas=1, num_stages=len(used), num_microbatches=1,
        schedule="sequential", updates="sync",
        stages=tuple(
            Stage(
                index=index, replica=0, device=name, layers=(), num_ops=1, parameter_bytes=0, peak_bytes=0,
                compute_seconds=0, send_bytes=0,
            )
            for index, name in enumerate(used)
        ),
        placement={op: D[device] for op, device in placement.items()},
        predicted=Predicted(
            step_seconds=1, latency_seconds=1, bottleneck_stage=0, bubble_fraction=0, peak_bytes={}
        ),
        baselines=(),
        solver=SolverInfo(status="feasible", objective=1, lower_bound=1, gap=0, seconds=0, seed=0),
        layers=tuple(
            PlannedLayer(name=box, class_name="Dense", device=layer_device[box])
            for box in forward_boxes(graph)
            if box in layer_device
        ),
    )  # fmt: skip


def model(prefix: str = "layer", suffix: str = "", width: int = 64) -> OpGraph:
    """Two layers in inference, with a Reshape of no layer between them; `suffix` renames the ops."""
    made = Builder()
    made.add(f"x{suffix}", 0.0, type="Placeholder")
    for index in range(2):
        made.variable(f"w{index}", width * 4, layer=f"{prefix}{index}")
    made.add(f"f0{suffix}", 1.0, f"x{suffix}", layer=f"{prefix}0", variables=["w0"], group="w0")
    made.add(f"reshape{suffix}", 0.0, f"f0{suffix}")
    made.add(f"f1{suffix}", 1.0, f"reshape{suffix}", layer=f"{prefix}1", variables=["w1"], group="w1")
    made.add(f"result{suffix}", 0.0, f"f1{suffix}")
    return made.graph()


SPLIT = {"x": 0, "f0": 0, "reshape": 1, "f1": 1, "result": 1}


def test_the_same_graph_keeps_its_placement() -> None:
    graph = model()
    assert transfer_placement(plan_of(graph, SPLIT), graph) == {op: D[d] for op, d in SPLIT.items()}


def test_other_op_names_follow_their_layers_and_their_neighbours() -> None:
    plan = plan_of(model(), SPLIT)
    assert transfer_placement(plan, model(suffix="_1")) == {
        "x_1": D[0],  # with its reader
        "f0_1": D[0],
        "reshape_1": D[1],  # with its reader
        "f1_1": D[1],
        "result_1": D[1],  # nobody reads it: with what it reads
    }


def test_inference_of_a_trained_plan() -> None:
    training = training_chain(2, parameter_bytes=256, slot_bytes=256, saved_bytes=256).graph()
    placement = {op.name: int(op.layer == "layer1") for op in training.ops}
    made = Builder()
    made.add("x", 0.0, type="Placeholder")
    for index, before in enumerate(("x", "f0")):
        made.variable(f"w{index}", 256, layer=f"layer{index}")
        made.add(f"f{index}", 1.0, before, layer=f"layer{index}", variables=[f"w{index}"])
    assert transfer_placement(plan_of(training, placement), made.graph()) == {
        "x": D[0], "f0": D[0], "f1": D[1],
    }  # fmt: skip


def test_a_colocation_group_stays_in_one_place() -> None:
    plan = plan_of(model(), SPLIT)
    made = Builder()
    made.add("f0", 1.0, layer="layer0", group="shared")
    made.add("new", 1.0, "f0", layer="layer1", group="shared")
    assert transfer_placement(plan, made.graph()) == {"f0": D[0], "new": D[0]}


def test_an_op_that_no_gpu_can_run_stays_on_the_host_and_moves_no_variable_there() -> None:
    """Bug: an op without a GPU kernel was moved to the GPU of its colocation group, or moved the group to the host."""
    made = Builder()
    made.variable("w", 256, layer="layer0")
    made.add("only_cpu", 0.0, layer="layer0", group="shared", host_only=True)
    made.add("read", 1.0, "only_cpu", layer="layer0", variables=["w"], group="shared")
    graph = made.graph()
    host = D[0].replace("GPU", "CPU")
    plan = plan_of(graph, {"only_cpu": 0, "read": 0})
    plan = replace(plan, devices=(*plan.devices, replace(plan.devices[0], name=host)))
    for placement in ({"only_cpu": host, "read": D[0]}, {"read": D[0]}):
        assert transfer_placement(replace(plan, placement=placement), graph) == {"only_cpu": host, "read": D[0]}


def test_what_touches_nothing_goes_to_the_last_device() -> None:
    plan = plan_of(model(), SPLIT)
    made = Builder()
    made.add("stranger", 1.0)
    assert transfer_placement(plan, made.graph()) == {"stranger": D[1]}


def test_rebase_keeps_a_plan_in_the_names_of_the_graph() -> None:
    graph = model()
    plan = plan_of(graph, SPLIT)
    assert rebase(plan, graph) is plan


def test_rebase_renames_layers_in_order() -> None:
    plan = plan_of(model(), SPLIT)
    renamed = model("dense_", "_7")
    moved = rebase(plan, renamed)
    assert [(layer.name, layer.device) for layer in moved.layers] == [("dense_0", D[0]), ("dense_1", D[1])]
    assert transfer_placement(moved, renamed)["f0_7"] == D[0]
    assert transfer_placement(moved, renamed)["f1_7"] == D[1]


def test_rebase_leaves_the_ops_of_the_other_graph() -> None:
    """A bug: a saved plan, which has its ops, was refused where Keras numbered the layers anew."""
    plan = plan_of(model(), SPLIT)
    count = len(plan.placement)
    ops = PlannedOps(
        types=("Relu",) * count, layers=(0,) * count, phases="f" * count, stages=(0,) * count, inputs=((),) * count
    )
    moved = rebase(replace(plan, ops=ops), model("dense_", "_7"))
    assert len(moved.ops) == 0
    assert set(moved.placement) == {"f0_7", "f1_7"}


def test_rebase_refuses_another_model() -> None:
    plan = plan_of(model(), SPLIT)
    with pytest.raises(UsageError) as raised:
        rebase(plan, model(width=65))
    assert raised.value.message == "the plan is for another model"
    assert raised.value.notes[0].endswith("128 parameters, 5 ops")
    assert raised.value.notes[1].endswith("130 parameters, 5 ops")


def test_every_op_gets_a_device_of_the_plan() -> None:
    training = training_chain(3, parameter_bytes=256, slot_bytes=256, saved_bytes=256)
    graph = training.costed(topology()).graph
    plan = plan_of(graph, {op.name: int(op.layer == "layer2") for op in graph.ops})
    renamed = training_chain(3, parameter_bytes=256, slot_bytes=0, saved_bytes=256).graph()
    placement = transfer_placement(plan, renamed)
    assert set(placement) == set(renamed.op)
    assert set(placement.values()) == set(D)
