"""Which nodes are sizes, and which a program repeats in place of being given them; by hand and on any graph."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.graph_def import producer
from partitioner.ir.sizes import Node, repeated_for_sizes, sizes_among


def nodes_of(*lines: str) -> list[Node]:
    """Nodes of `name = Type x y`."""
    pairs = [(left.strip(), right.split()) for left, right in (line.split("=") for line in lines)]
    return [Node(name, words[0], [f"{read}:0" for read in words[1:]]) for name, words in pairs]


FORWARD = nodes_of(
    "x = Placeholder",
    "w = ReadVariableOp",
    "two = Const",
    "product = MatMul x w",
    "active = Relu product",
    "shape = Shape active",
    "rows = StridedSlice shape two",
    "twice = Mul rows two",
    "largest = ArgMax active two",
)


def repeated(
    *read: str, present: Collection[str] = (), repeatable: Collection[str] = (), nodes: list[Node] | None = None
) -> set[str]:
    nodes = nodes or FORWARD
    allowed = repeatable or {node.name for node in nodes if node.type not in ("Placeholder", "ReadVariableOp")}
    read_tensors = [f"{name}:0" for name in read]
    return repeated_for_sizes(read_tensors, nodes, sizes_among(nodes), present=present, repeatable=allowed)


def test_sizes_are_made_of_shapes_and_constants_alone() -> None:
    assert sizes_among(FORWARD) == {"two", "shape", "rows", "twice"}


def test_sizes_of_a_traced_function() -> None:
    def scaled(x: Any, y: Any) -> Any:
        return x * tf.cast(tf.shape(x)[0] + 1, tf.float32) + y

    specs = [tf.TensorSpec([None]), tf.TensorSpec([None])]
    nodes = tf.function(scaled).get_concrete_function(*specs).graph.as_graph_def().node
    sizes = sizes_among(map(Node.of, nodes))
    kinds = {node.op for node in nodes if node.name in sizes}
    assert {"Shape", "StridedSlice", "Cast"} <= kinds
    assert "Mul" not in kinds


def test_a_size_is_computed_again_from_what_is_given_anyway() -> None:
    assert repeated("twice", "active") == {"twice", "rows", "shape", "two"}


def test_what_a_shape_is_read_of_is_repeated_up_to_what_is_given_or_present() -> None:
    assert repeated("rows", "x", present=["w", "two"]) == {"rows", "shape", "active", "product"}


def test_a_size_that_nothing_given_leads_to_is_still_given() -> None:
    assert repeated("rows", "x") == set()
    assert repeated("rows", "x", "w", repeatable=["rows", "shape"]) == set()


def test_values_are_not_computed_again() -> None:
    """The index of the largest is of a dtype of sizes, but takes computing."""
    assert repeated("largest", "active") == set()


@pytest.mark.parametrize("kind", ["While", "Unique"])
def test_loops_and_what_has_no_size_before_it_has_run_are_not_repeated(kind: str) -> None:
    nodes = nodes_of("x = Placeholder", f"made = {kind} x", "shape = Shape made")
    assert repeated("shape", "x", nodes=nodes) == set()


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    lines = ["n0 = Placeholder"]
    for index in range(1, draw(st.integers(2, 12))):
        reads = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2, unique=True))
        kind = draw(st.sampled_from(["Add", "Add", "Shape", "While"]))
        lines.append(f"n{index} = {kind} {' '.join(f'n{read}' for read in reads)}")
    return nodes_of(*lines)


@given(graphs(), st.data())
def test_what_is_repeated_needs_only_what_is_there(nodes: list[Node], data: st.DataObject) -> None:
    names = [node.name for node in nodes]
    read = {f"{name}:0" for name in data.draw(st.lists(st.sampled_from(names), unique=True))}
    present = set(data.draw(st.lists(st.sampled_from(names), unique=True))) - {producer(one) for one in read}
    allowed = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    sizes = sizes_among(nodes)
    found = repeated_for_sizes(read, nodes, sizes, present=present, repeatable=allowed)
    still_given = {tensor for tensor in read if producer(tensor) not in found}
    assert found <= allowed - present
    for node in nodes:
        if node.name in found:
            assert all(t in still_given or producer(t) in found | present for t in node.reads)
