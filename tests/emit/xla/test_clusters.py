"""Which nodes are compiled together: on graphs by hand, and that no two clusters wait for each other on any graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from partitioner.emit.graph.graph_def import register_functions
from partitioner.emit.xla.calls import with_compiled_calls
from partitioner.emit.xla.clusters import find_clusters
from partitioner.ir.graph_def import in_run_order, producer, tensor_name

A, B = (f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in (0, 1))


def graph_of(*lines: str) -> Any:
    """A GraphDef of sums: `a = x y` on A, `a* = x y` on B; what is not defined is an argument."""
    graph_def, made = tf.compat.v1.GraphDef(), set[str]()
    rows = [(left.strip(), right.split()) for left, right in (line.split("=") for line in lines)]
    names = {left.rstrip("*") for left, _ in rows}
    for left, reads in rows:
        for read in reads:
            if read.lstrip("^") not in names | made:
                made.add(read)
                argument = graph_def.node.add(name=read, op="Placeholder")
                argument.attr["dtype"].type = tf.float32.as_datatype_enum
        node = graph_def.node.add(name=left.rstrip("*"), op="AddN", input=reads, device=B if left.endswith("*") else A)
        node.attr["N"].i = sum(1 for read in reads if not read.startswith("^"))
        node.attr["T"].type = tf.float32.as_datatype_enum
    return graph_def


def found_in(*lines: str, devices: tuple[str, ...] = (A, B), kept_out: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [cluster.nodes for cluster in find_clusters(graph_of(*lines), devices, kept_out=kept_out).clusters]


def test_one_device_is_one_cluster() -> None:
    assert found_in("a = x", "b = a x", "c = b") == [("a", "b", "c")]


def test_a_device_that_does_not_compile_has_none() -> None:
    assert found_in("a = x", "b* = a", "c = b", devices=(A,)) == [("a",), ("c",)]


def test_a_pipeline_there_and_back_is_three_clusters() -> None:
    assert found_in("a = x", "b = a", "c* = b", "d* = c", "e = d b") == [("a", "b"), ("c", "d"), ("e",)]


def test_what_another_device_waits_for_comes_first() -> None:
    """`own` needs nothing that B makes, and B does not need it."""
    assert found_in("sent = x", "own = sent x", "c* = sent", "d = own c") == [("sent",), ("own",), ("c",), ("d",)]


def test_what_another_device_waits_for_after_it_has_sent_something_comes_first_too() -> None:
    """`kept` is read again beside what comes back, for the other device; it was left with `own`, which nobody needs."""
    clusters = found_in("sent = x", "kept = x", "own = x", "c* = sent", "sum = c kept", "d* = sum")
    assert clusters == [("sent", "kept"), ("own",), ("c",), ("sum",), ("d",)]


def test_a_node_that_is_not_compiled_parts_what_waits_for_it() -> None:
    assert found_in("a = x", "p = a", "b = p", "c = a", kept_out=("p",)) == [("a", "c"), ("b",)]


def test_waiting_without_a_tensor_counts() -> None:
    assert found_in("a = x", "b* = x ^a", "c = x ^b") == [("a",), ("b",), ("c",)]


def test_strings_and_lists_do_not_cross() -> None:
    graph_def = tf.compat.v1.GraphDef()
    with tf.Graph().as_default() as graph, tf.device(A):
        size = tf.compat.v1.placeholder(tf.int32, [], name="size")
        of_pairs = {"element_shape": [2], "element_dtype": tf.float32}
        handle = tf.raw_ops.TensorListReserve(num_elements=size, name="list", **of_pairs)
        tf.raw_ops.TensorListStack(input_handle=handle, name="stack", **of_pairs)
        graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.device = "" if node.op == "Placeholder" else A
    together = find_clusters(graph_def, [A])
    assert [set(cluster.nodes) for cluster in together.clusters] == [{"list", "stack"}]
    handed_over = find_clusters(graph_def, [A], fetched=["list:0"])
    assert handed_over.refused["list"] == "TensorListReserve hands a list of tensors over to another program"
    assert "stack" in handed_over.refused


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], tuple[str, ...]]:
    """Lines of a random graph, and the nodes that are not compiled."""
    count = draw(st.integers(2, 14))
    lines, kept_out = [], []
    for index in range(count):
        sources = ["x", *(f"n{other}" for other in range(index))]
        reads = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=3))
        waits = draw(st.lists(st.sampled_from(sources[1:]), max_size=1)) if index else []
        lines.append(f"n{index}{draw(st.sampled_from(['', '*']))} = {' '.join([*reads, *('^' + w for w in waits)])}")
        if draw(st.integers(0, 4)) == 0:
            kept_out.append(f"n{index}")
    return lines, tuple(kept_out)


@given(graphs())
def test_no_two_clusters_wait_for_each_other(graph: tuple[list[str], tuple[str, ...]]) -> None:
    """Each cluster is one device's, each node is in at most one, and the calls can be put into an order."""
    lines, kept_out = graph
    graph_def = graph_of(*lines)
    clusters = find_clusters(graph_def, [A, B], kept_out=kept_out).clusters
    nodes = {node.name: node for node in graph_def.node}
    inside = {name: index for index, cluster in enumerate(clusters) for name in cluster.nodes}
    assert len(inside) == sum(len(cluster.nodes) for cluster in clusters)
    assert inside.keys() == {name for name, node in nodes.items() if node.device} - set(kept_out)
    assert all(nodes[name].device == cluster.device for cluster in clusters for name in cluster.nodes)
    calls: dict[Any, Any] = {}
    for name, node in nodes.items():
        call = calls.setdefault(inside.get(name, name), type("Call", (), {"name": inside.get(name, name), "needs": []}))
        call.needs += [inside.get(p, p) for r in node.input if (p := producer(r)) and inside.get(p, p) != call.name]
    assert len(in_run_order(calls.values(), lambda call: call.needs)) == len(calls)


@pytest.mark.parametrize("number", range(4))
def test_a_compiled_graph_gives_the_same(number: int) -> None:
    rng = np.random.default_rng(number)
    lines = [
        f"n{index} = {' '.join(rng.choice(['x', *(f'n{other}' for other in range(index))], 2))}" for index in range(9)
    ]
    kept_out = [f"n{index}" for index in rng.choice(9, 2, replace=False)]
    graph_def, fetched = graph_of(*lines), [f"n{index}:0" for index in range(9)]
    compiled = with_compiled_calls(graph_def, [A], fetched=fetched, kept_out=kept_out)
    register_functions(compiled.graph_def)

    def run(graph_def: Any, names: list[str]) -> Any:
        def imported(x: Any) -> Any:
            return tf.graph_util.import_graph_def(graph_def, input_map={"x": x}, return_elements=names, name="")

        return [value.numpy() for value in tf.function(imported, autograph=False)(tf.constant(1.5))]

    made = [tensor_name(compiled.tensor.get(name, name)) for name in fetched]
    assert run(compiled.graph_def, made) == run(graph_def, fetched)
    assert {node.op for node in compiled.graph_def.node} == {"AddN", "PartitionedCall", "Placeholder"}
