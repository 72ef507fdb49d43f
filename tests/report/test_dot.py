"""What the picture shows: golden DOT, structure read back by pydot, names that DOT would mangle."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace

import pydot
import pytest

from partitioner.ir.plan import (
    LinkInfo,
    Origin,
    PlanDocument,
    PlannedEdge,
    PlannedLayer,
)
from partitioner.report.boxes import layer_boxes, outputs_of
from partitioner.report.picture import Arrow, merged_arrows
from partitioner.report.placement import to_dot

Golden = Callable[[str, str], None]
GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU1 = "/job:localhost/replica:0/task:0/device:GPU:1"


def test_golden_picture_of_a_split(split_plan: PlanDocument, golden: Golden) -> None:
    golden("picture_split.dot", to_dot(split_plan))


def test_golden_picture_with_chains(split_plan: PlanDocument, golden: Golden) -> None:
    golden("picture_chains.dot", to_dot(split_plan, detail="chains", rankdir="LR"))


def test_golden_picture_of_interleaved_stages(interleaved_plan: PlanDocument, golden: Golden) -> None:
    golden("picture_interleaved.dot", to_dot(interleaved_plan))


def test_clusters_name_their_stages_where_the_batch_is_cut(
    split_plan: PlanDocument, pipeline_plan: PlanDocument, interleaved_plan: PlanDocument
) -> None:
    assert _clusters(split_plan) == ["GPU:0", "GPU:1"]
    assert _clusters(pipeline_plan) == ["GPU:0, stage 0", "GPU:1, stage 1"]
    assert _clusters(interleaved_plan) == ["GPU:0, stages 0 (recompute) and 2", "GPU:1, stages 1 and 3"]
    stages = tuple(replace(stage, recompute=False) for stage in interleaved_plan.stages)
    whole = replace(interleaved_plan, num_microbatches=1, schedule="sequential", stages=stages)
    assert _clusters(whole) == ["GPU:0, stages 0 and 2", "GPU:1, stages 1 and 3"]


def test_the_caption_tells_microbatches_and_schedule(split_plan: PlanDocument, pipeline_plan: PlanDocument) -> None:
    (defaults,) = _parse(to_dot(pipeline_plan)).get_graph_defaults()
    assert _plain(defaults["label"]).split("\n")[:3] == [
        "fashion_cnn",
        "layer-split, estimated step 1.20 ms, batch size 64",
        "4 microbatches, schedule 1f1b",
    ]
    assert "microbatch" not in to_dot(split_plan)


def test_a_device_that_the_flow_comes_back_to_is_ranked_by_the_flow(
    pipeline_plan: PlanDocument, interleaved_plan: PlanDocument
) -> None:
    assert "newrank" not in to_dot(pipeline_plan)
    assert _parse(to_dot(interleaved_plan)).get("newrank") == "true"


@pytest.mark.parametrize("name", ["split_plan", "single_plan", "interleaved_plan"])
@pytest.mark.parametrize("detail", ["layers", "chains"])
def test_one_cluster_per_used_device(name: str, detail: str, request: pytest.FixtureRequest) -> None:
    plan: PlanDocument = request.getfixturevalue(name)
    graph = _parse(to_dot(plan, detail=detail))
    assert len(graph.get_subgraphs()) == len(plan.used_devices)


def test_every_layer_is_a_node_in_its_device(split_plan: PlanDocument) -> None:
    first, second = _parse(to_dot(split_plan)).get_subgraphs()
    assert [_names(first), _names(second)] == [["n0", "n1", "n2", "n3", "n4", "n5"], ["n6", "n7"]]


def test_cut_edges_carry_their_bytes_both_ways(split_plan: PlanDocument) -> None:
    graph = _parse(to_dot(split_plan))
    cut = [edge for edge in graph.get_edges() if edge.get("penwidth")]
    assert [(edge.get_source(), edge.get_destination()) for edge in cut] == [("n5", "cut5"), ("cut5", "n6")]
    # 64 x 3136 floats are 802,816 bytes: 784 KiB
    assert _plain(graph.get_node("cut5")[0].get("label")) == "784 KiB\n784 KiB back"


def test_cut_edges_name_their_link(split_plan: PlanDocument) -> None:
    link = LinkInfo(
        name="nvlink3",
        origin=Origin.CATALOGUE,
        latency_seconds=1e-6,
        bandwidth_bytes_per_second=3e11,
        num_pairs=2,
        pairs=((GPU0, GPU1), (GPU1, GPU0)),
    )
    back = replace(link, name="pcie4", num_pairs=1, pairs=((GPU1, GPU0),))
    there = replace(link, num_pairs=1, pairs=((GPU0, GPU1),))
    for links in ((link,), (back, there)):
        graph = _parse(to_dot(replace(split_plan, links=links)))
        assert _plain(graph.get_node("cut5")[0].get("label")).split("\n")[2] == "nvlink3"


def test_inference_sends_nothing_back(split_plan: PlanDocument) -> None:
    edges = tuple(replace(edge, gradient_bytes=0) for edge in split_plan.edges)
    assert " back" not in to_dot(replace(split_plan, edges=edges))


def test_clusters_tell_hardware_and_memory(split_plan: PlanDocument) -> None:
    cluster = _parse(to_dot(split_plan)).get_subgraphs()[0]
    facts = next(node for node in cluster.get_nodes() if node.get_name().startswith("facts"))
    assert _plain(cluster.get("label")) == "GPU:0"
    assert _plain(facts.get("label")).split("\n") == [
        "NVIDIA A100 80GB (catalogue)",
        "peak memory 1.2 / 8.0 GiB",
        "parameters 73.5 KiB",
        "sends 784 KiB",
    ]


def test_shapes_can_be_left_out(split_plan: PlanDocument) -> None:
    assert "(64, 2048)" in to_dot(split_plan)
    assert "(64, 2048)" not in to_dot(split_plan, show_shapes=False)


def test_what_nothing_reads_is_an_output(split_plan: PlanDocument) -> None:
    edges = _parse(to_dot(split_plan)).get_edges()
    ends = [(edge.get_source(), edge.get_destination()) for edge in edges]
    assert [end for end in ends if "output" in str(end[1])] == [("n7", "output0")]


@pytest.mark.parametrize(
    "name",
    [
        'a"b',
        "gradients/a:0",
        "{x|y}",
        "<b>&amp;</b>",
        "größe_層",
        r"back\slash\N\G\n",
        "two\nlines",
        "node",
        "]]>",
        "bell\x07",
    ],
)
def test_nasty_names_survive(split_plan: PlanDocument, name: str) -> None:
    layers = tuple(replace(la, name=name) if la.name == "dense" else la for la in split_plan.layers)
    edges = tuple(
        replace(
            edge,
            source=name if edge.source == "dense" else edge.source,
            target=name if edge.target == "dense" else edge.target,
        )
        for edge in split_plan.edges
    )
    text = to_dot(replace(split_plan, layers=layers, edges=edges))
    node = _parse(text).get_subgraphs()[1].get_node("n6")[0]
    shown = name.replace("\n", " ").replace("\x07", "\ufffd")
    assert _plain(node.get("label")).split("\n")[0] == f"{shown} (Dense)"


def test_only_chains_on_one_device_share_a_box() -> None:
    layers = [
        PlannedLayer(name=name, class_name="Dense", device=device, parameter_bytes=size)
        for name, device, size in [
            ("a", GPU0, 1),
            ("b", GPU0, 2),
            ("left", GPU0, 4),
            ("right", GPU0, 8),
            ("right2", GPU0, 16),
            ("join", GPU0, 32),
            ("c", GPU0, 64),
            ("d", GPU1, 128),
            ("e", GPU1, 256),
        ]
    ]
    arrows = "a>b, b>left, b>right, right>right2, left>join, right2>join, join>c, c>d, d>e"
    pairs = [arrow.split(">") for arrow in arrows.split(", ")]
    edges = [PlannedEdge(source=source, target=target, size_bytes=1) for source, target in pairs]
    boxes, drawn = layer_boxes(layers, edges, detail="chains")
    assert [box.members for box in boxes] == [
        ("a", "b"),
        ("left",),
        ("right", "right2"),
        ("join", "c"),
        ("d", "e"),
    ]
    assert [(arrow.source, arrow.target) for arrow in drawn] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 3),
        (3, 4),
    ]
    assert [box.facts[-1] for box in boxes] == [f"parameters <b>{size} B</b>" for size in (3, 4, 24, 96, 384)]
    assert outputs_of(boxes, drawn) == (4,)


def test_tensors_between_two_boxes_add_up() -> None:
    layers = [PlannedLayer(name=name, class_name="Dense", device=GPU0) for name in "ab"]
    edges = [PlannedEdge(source="a", target="b", size_bytes=n, gradient_bytes=10 * n) for n in (1, 2)]
    ((arrow,),) = layer_boxes(layers, edges)[1:]
    assert (arrow.size_bytes, arrow.gradient_bytes) == (3, 30)


def test_a_tensor_that_a_box_reads_twice_is_sent_once() -> None:
    """a -> b and a -> c in one group: one tensor of 8 bytes, and two gradients of 8; a2 sends 3 more."""
    arrows = [
        Arrow(source=0, target=2, size_bytes=8, gradient_bytes=8),
        Arrow(source=0, target=3, size_bytes=8, gradient_bytes=8),
        Arrow(source=1, target=3, size_bytes=3),
        Arrow(source=2, target=3, size_bytes=5),
    ]
    assert merged_arrows(arrows, [0, 0, 1, 1]) == (Arrow(source=0, target=1, size_bytes=11, gradient_bytes=16),)


def test_a_layer_called_twice_is_one_box_in_a_cycle() -> None:
    layers = [PlannedLayer(name=name, class_name="Dense", device=GPU0) for name in "ab"]
    edges = [PlannedEdge(source=s, target=t, size_bytes=1) for s, t in ("ab", "ba", "aa")]
    _, arrows = layer_boxes(layers, edges)
    assert [(arrow.source, arrow.target) for arrow in arrows] == [(0, 1), (1, 0)]


def test_long_models_are_folded_unless_asked_otherwise(split_plan: PlanDocument) -> None:
    layers = [PlannedLayer(name=f"layer_{i}", class_name="Dense", device=GPU0) for i in range(41)]
    edges = [PlannedEdge(source=f"layer_{i}", target=f"layer_{i + 1}", size_bytes=1) for i in range(40)]
    plan = replace(split_plan, layers=tuple(layers), edges=tuple(edges))
    assert "40 x layer" in to_dot(plan)
    assert "layer_0 .. layer_40 (41 layers)" in to_dot(plan, detail="chains")
    assert to_dot(plan, detail="layers").count("(Dense)") == 41
    assert to_dot(replace(plan, layers=plan.layers[:40], edges=plan.edges[:39])).count("(Dense)") == 40


def test_more_devices_than_colours_still_draw(split_plan: PlanDocument) -> None:
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(8)]
    plan = replace(
        split_plan,
        devices=tuple(replace(split_plan.devices[0], name=name) for name in names),
        stages=tuple(replace(split_plan.stages[0], index=i, device=name) for i, name in enumerate(names)),
        layers=tuple(PlannedLayer(name=name, class_name="Dense", device=name) for name in names),
        edges=(),
    )
    labels = [_plain(cluster.get("label")) for cluster in _parse(to_dot(plan)).get_subgraphs()]
    assert labels == [f"GPU:{i}" for i in range(8)]


def test_malformed_requests_are_refused(split_plan: PlanDocument) -> None:
    with pytest.raises(ValueError, match="rankdir is 'down'"):
        to_dot(split_plan, rankdir="down")
    with pytest.raises(ValueError, match="'everything'"):
        to_dot(split_plan, detail="everything")
    stray = PlannedEdge(source="dense", target="nowhere", size_bytes=1)
    with pytest.raises(ValueError, match="unknown layer 'nowhere'"):
        to_dot(replace(split_plan, edges=(stray,)))
    with pytest.raises(ValueError, match="share a name"):
        to_dot(replace(split_plan, layers=split_plan.layers[:1] * 2, edges=()))


def _parse(text: str) -> pydot.Dot:
    graphs = pydot.graph_from_dot_data(text)
    assert graphs is not None and len(graphs) == 1
    return graphs[0]


def _names(cluster: pydot.Subgraph) -> list[str]:
    return [node.get_name() for node in cluster.get_nodes() if re.fullmatch(r"n\d+", node.get_name())]


def _clusters(plan: PlanDocument) -> list[str]:
    return [_plain(cluster.get("label")) for cluster in _parse(to_dot(plan)).get_subgraphs()]


def _plain(label: object) -> str:
    """The text of an HTML label, its lines and cells parted by line ends."""
    assert isinstance(label, str) and label.startswith("<") and label.endswith(">")
    lines = re.sub(r"<br[^>]*>|</td>", "\n", label[1:-1])
    text = html.unescape(re.sub(r"<[^>]*>", "", lines)).replace("\xa0", "")
    return text.replace(r"\\", "\\").strip("\n")
