"""The three levels of the picture, of real plans and of plans by hand: what boxes and arrows say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from partitioner.errors import UsageError
from partitioner.ir.plan import DeviceInfo, Origin, PlanDocument, PlannedLayer, StageEdge
from partitioner.ir.planned_ops import CutOp, PlannedOps
from partitioner.report.op_boxes import op_boxes
from partitioner.report.op_groups import MAX_BOXES, op_groups
from partitioner.report.placement import to_dot
from partitioner.report.stage_boxes import only_stage, stage_boxes, stages_of_layers

GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU1 = "/job:localhost/replica:0/task:0/device:GPU:1"


def with_ops(plan: PlanDocument, rows: str) -> PlanDocument:
    """The plan with ops by hand, a line each: name, type, layer, phase, stage, ops read, and `cut=stage:bytes`."""
    lines = sorted(line.split() for line in rows.strip().splitlines())
    number = {line[0]: index for index, line in enumerate(lines)}
    boxes = {layer.name: index for index, layer in enumerate(plan.layers)}
    cuts = [(number[line[0]], line[6].removeprefix("cut=").split(":")) for line in lines if len(line) > 6]
    return replace(
        plan,
        placement={line[0]: (GPU0, GPU1)[int(line[4])] for line in lines},
        ops=PlannedOps(
            types=tuple(line[1] for line in lines),
            layers=tuple(boxes.get(line[2], -1) for line in lines),
            phases="".join(line[3] for line in lines),
            stages=tuple(int(line[4]) for line in lines),
            inputs=tuple(tuple(number[name] for name in line[5].split(",") if name in number) for line in lines),
            cuts=tuple(CutOp(op=op, stage=int(stage), size_bytes=int(size)) for op, (stage, size) in cuts),
        ),
    )


@pytest.fixture
def ops_plan(split_plan: PlanDocument) -> PlanDocument:
    return with_ops(
        split_plan,
        """
        kernel  Const    dense   f 0 -
        flat    Reshape  flatten f 0 - cut=1:4096
        matmul  MatMul   dense   f 1 flat,kernel
        bias    BiasAdd  dense   f 1 matmul
        grad    MatMul   dense   b 1 bias cut=0:2048
        back    Reshape  flatten b 0 grad
        """,
    )


def test_an_op_is_a_box_with_its_layer_and_phase(ops_plan: PlanDocument) -> None:
    boxes, arrows = op_boxes(ops_plan, None)
    assert [(box.title, box.kind, box.facts) for box in boxes] == [
        ("Reshape", "", ("flatten",)),
        ("Const", "", ("dense",)),
        ("MatMul", "", ("dense",)),
        ("BiasAdd", "", ("dense",)),
        ("MatMul", "backward", ("dense",)),
        ("Reshape", "backward", ("flatten",)),
    ]
    # The constant is made on the device that reads it: no arrow crosses for it.
    assert [(arrow.source, arrow.target, arrow.size_bytes) for arrow in arrows] == [
        (0, 2, 4096),
        (2, 3, 0),
        (3, 4, 0),
        (4, 5, 2048),
    ]
    assert [box.device for box in boxes] == [GPU0, GPU0, GPU1, GPU1, GPU1, GPU0]


def test_ops_of_one_stage_have_other_stages_beside_them(ops_plan: PlanDocument) -> None:
    text = to_dot(ops_plan, level="op", stage=1)
    titles = re.findall(r"^n\d+ .*?<b>(.*?)</b>", text, re.MULTILINE)
    assert sorted(titles) == ["BiasAdd", "MatMul", "MatMul", "stage 0"]
    assert text.count("subgraph cluster_device") == 1
    assert 'color="#E69F00"' in text  # the colour of GPU:1 in the whole picture
    assert re.findall(r"<b>(\d\.\d KiB)</b>", text) == ["2.0 KiB", "4.0 KiB"]


def test_equal_plans_give_equal_text_at_every_level(ops_plan: PlanDocument) -> None:
    again = PlanDocument.from_json(ops_plan.to_json())
    for level in ("stage", "layer", "op"):
        for stage in (None, 0, 1):
            assert to_dot(again, level=level, stage=stage) == to_dot(ops_plan, level=level, stage=stage)


def test_a_stage_is_a_box_with_its_figures(split_plan: PlanDocument) -> None:
    edge = StageEdge(source=0, target=1, size_bytes=802_816, gradient_bytes=802_816)
    boxes, (arrow,) = stage_boxes(replace(split_plan, stage_edges=(edge,)))
    assert (boxes[0].title, boxes[0].kind) == ("stage 0", "GPU:0")
    assert boxes[0].facts == (
        "conv2d .. flatten (5 layers)",
        "150 ops",
        "compute <b>1.25 ms</b>",
        "parameters <b>73.5 KiB</b>",
        "peak memory of the device <b>1.2 GiB</b>",
    )
    assert (arrow.source, arrow.target, arrow.size_bytes, arrow.gradient_bytes) == (0, 1, 802_816, 802_816)


def test_replicas_send_between_their_own_stages(split_plan: PlanDocument) -> None:
    """Two replicas, of which the second shares the last stage's device with the first."""
    spare = GPU1.replace("GPU:1", "GPU:2")
    first, last = split_plan.stages
    device = DeviceInfo(name=spare, hardware="A100", origin=Origin.ASSUMED, memory_bytes=8 << 30)
    plan = replace(
        split_plan,
        devices=(*split_plan.devices, device),
        num_replicas=2,
        stages=(first, last, replace(first, replica=1, device=spare)),
        stage_edges=(StageEdge(source=0, target=1, size_bytes=8),),
    )
    boxes, arrows = stage_boxes(plan)
    assert [box.title for box in boxes] == ["stage 0, replica 0", "stage 1, all replicas", "stage 0, replica 1"]
    assert [(arrow.source, arrow.target) for arrow in arrows] == [(0, 1), (2, 1)]


def test_layers_belong_to_the_stage_that_has_them(interleaved_plan: PlanDocument) -> None:
    stages = stages_of_layers(interleaved_plan)
    assert stages == {
        "image": 0,
        "conv2d": 0,
        "max_pooling2d": 0,
        "conv2d_1": 1,
        "max_pooling2d_1": 1,
        "flatten": 2,
        "dense": 3,
        "logits": 3,
    }


def test_one_stage_of_layers(interleaved_plan: PlanDocument) -> None:
    text = to_dot(interleaved_plan, stage=2)
    titles = re.findall(r"^n\d+ .*?<b>(.*?)</b>", text, re.MULTILINE)
    assert sorted(titles) == ["flatten", "stage 1", "stage 3"]
    assert "-> output" not in text


def test_only_stage_keeps_what_touches_it(split_plan: PlanDocument) -> None:
    boxes, arrows = stage_boxes(replace(split_plan, stage_edges=(StageEdge(source=0, target=1, size_bytes=8),)))
    kept, (arrow,) = only_stage(split_plan, 1, boxes, arrows)
    assert [(box.title, box.is_pale) for box in kept] == [("stage 1", False), ("stage 0", True)]
    assert (arrow.source, arrow.target) == (1, 0)


def test_a_stage_that_is_not_there_names_one_that_is(split_plan: PlanDocument) -> None:
    with pytest.raises(UsageError) as caught:
        to_dot(split_plan, stage=2)
    assert str(caught.value) == ("the plan has no stage 2: it has 2 stages, numbered from 0\n   help: stage=1")
    assert "--stage 1" in caught.value.for_command_line()


def test_a_plan_without_ops_says_so_and_shows_layers(split_plan: PlanDocument) -> None:
    text = to_dot(split_plan, level="op")
    assert "of an earlier version, which kept no op graph: by layer" in text
    large = replace(split_plan, model=replace(split_plan.model, num_ops=120_000))
    assert "keeps the op graph of at most 100,000 ops, this has 120,000: by layer" in to_dot(large, level="op")
    assert text.count("(Dense)") == 2


@pytest.mark.parametrize("blocks", [1, 5, 40, 400])
def test_any_number_of_ops_is_fewer_than_a_hundred_boxes(split_plan: PlanDocument, blocks: int) -> None:
    """Blocks of six forward ops in a chain, each with a backward op; of two kinds in the order of Thue and Morse, in
    which no block follows twice on itself for long."""
    lines, last = [], "-"
    for block in range(blocks):
        for index, kind in enumerate(("MatMul", "BiasAdd", "Relu", "Mul", "Sum", "Tanh")):
            name = f"f{block:03}_{index}"
            lines.append(f"{name} {kind if block.bit_count() % 2 else kind + 'V2'} block_{block} f 0 {last}")
            last = name
    for block in reversed(range(blocks)):
        lines.append(f"g{block:03} MatMul block_{block} b 0 {last},f{block:03}_0")
        last = f"g{block:03}"
    layers = tuple(PlannedLayer(name=f"block_{n}", class_name="Dense", device=GPU0) for n in range(blocks))
    plan = with_ops(replace(split_plan, layers=layers, edges=()), "\n".join(lines))
    groups = op_groups(plan, 0)
    assert len(groups) < MAX_BOXES < 400
    assert sorted(row for group in groups for row in group.rows) == list(range(7 * blocks))
    assert all(len({plan.ops.phases[row] for row in group.rows}) == 1 for group in groups)


def test_blocks_that_repeat_are_counted_in_ops(split_plan: PlanDocument) -> None:
    """200 alike layers of 5 ops: each a box, or all one."""
    lines, last = [], "-"
    for block in range(200):
        for index in range(5):
            name = f"f{block:03}_{index}"
            lines.append(f"{name} Mul encoder_{block}/scale f 0 {last},f{block - 1:03}_0")
            last = name
    names = [f"encoder_{block}/scale" for block in range(200)]
    layers = tuple(PlannedLayer(name=name, class_name="Scale", device=GPU0) for name in names)
    text = to_dot(with_ops(replace(split_plan, layers=layers, edges=()), "\n".join(lines)), level="op")
    titles = re.findall(r"^n\d+ .*?<b>(.*?)</b> \(forward\)", text, re.MULTILINE)
    # The first layer reads no layer before it.
    assert titles == ["encoder_0/scale", "199 x encoder/scale"]


def test_stages_that_share_devices_have_no_frames_but_colours(interleaved_plan: PlanDocument) -> None:
    drawn = to_dot(interleaved_plan, level="stage")
    assert "cluster_device" not in drawn
    assert all(colour in drawn for colour in ("#0072B2", "#E69F00"))
    assert "cluster_device" in to_dot(interleaved_plan, level="layer")
