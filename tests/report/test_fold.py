"""Folding by hand-drawn graphs: what repeats, where blocks are cut, and what they are called."""

from __future__ import annotations

import itertools

from partitioner.ir.plan import PlannedEdge, PlannedLayer
from partitioner.report.boxes import blocks_title, layer_boxes
from partitioner.report.fold import chains, repeats

GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU1 = "/job:localhost/replica:0/task:0/device:GPU:1"


def _found(kinds: str, sources: list[list[int]]) -> list[tuple[int, int, int]]:
    names = [f"n{index}" for index in range(len(kinds))]
    return [(found.start, found.period, found.count) for found in repeats(kinds, sources, names)]


def test_a_chain_of_alike_nodes_repeats_each() -> None:
    assert _found("xaaaay", [[], [0], [1], [2], [3], [4]]) == [(1, 1, 4)]


def test_residual_blocks_are_cut_where_one_tensor_crosses() -> None:
    """Four times (dense, dense, add), each add reading the block's input as well; an add stands before them.

    The run of alike nodes begins at that add, but a block cut there would read two tensors.
    """
    kinds = "a" + "dda" * 4
    sources = [[]] + [read for n in range(0, 12, 3) for read in ([n], [n + 1], [n, n + 2])]
    assert _found(kinds, sources) == [(1, 3, 4)]


def test_blocks_may_all_read_the_same_node_outside() -> None:
    """Decoder blocks that read the encoder's output: node 0."""
    kinds = "ex" + "cd" * 3
    sources = [[], [0], [0, 1], [2], [0, 3], [4], [0, 5], [6]]
    assert _found(kinds, sources) == [(2, 2, 3)]


def test_alike_nodes_that_read_others_do_not_repeat() -> None:
    assert _found("xyaa", [[], [], [0], [1]]) == [(2, 1, 2)]  # each the node two before it
    assert _found("xyaa", [[], [], [1], [0]]) == []


def test_chains_end_where_something_else_reads() -> None:
    assert chains("aaab", [[], [0], [1], [2]]) == [[0, 1, 2], [3]]
    assert chains("aaaa", [[], [0], [0], [1, 2]]) == [[0], [1], [2], [3]]


def test_names_of_blocks() -> None:
    assert blocks_title([["layer_0/a", "layer_0/b"], ["layer_1/a", "layer_1/b"]]) == "2 x layer"
    assert blocks_title([["conv2_block2_1_conv", "conv2_block2_add"], ["conv2_block3_1_conv", "conv2_block3_add"]]) == (
        "2 x conv2_block"
    )
    assert blocks_title([["conv", "add"], ["conv_1", "add_1"]]) == "2 x conv .. add"
    assert blocks_title([["dense"], ["dense_1"], ["dense_2"]]) == "3 x dense"
    assert blocks_title([["query"], ["key"], ["value"]]) == "query .. value (3 layers)"


def test_an_encoder_of_48_blocks_on_two_devices_is_three_boxes() -> None:
    parts = ("attention", "add", "norm", "up", "down", "add_2")
    layers, edges = [], []
    for block, part in itertools.product(range(48), parts):
        device = GPU0 if block < 24 else GPU1
        layers.append(PlannedLayer(name=f"encoder_layer_{block}/{part}", class_name=part.title(), device=device))
    layers.insert(0, PlannedLayer(name="embedding", class_name="Embedding", device=GPU0))
    names = [layer.name for layer in layers]
    for index in range(1, len(layers)):
        back = {"add": 2, "add_2": 3}.get(names[index].rpartition("/")[2])
        for source in {index - 1, index - back} if back else {index - 1}:
            edges.append(PlannedEdge(source=names[source], target=names[index], size_bytes=4))
    boxes, arrows = layer_boxes(layers, edges)
    assert [box.title for box in boxes] == ["embedding", "24 x encoder_layer", "24 x encoder_layer"]
    assert [box.device for box in boxes] == [GPU0, GPU0, GPU1]
    # The next attention and its add read one tensor.
    assert [(arrow.source, arrow.target, arrow.size_bytes) for arrow in arrows] == [(0, 1, 4), (1, 2, 4)]
