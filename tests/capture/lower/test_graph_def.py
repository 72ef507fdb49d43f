"""Edits of hand-made GraphDefs: who reads what afterwards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from partitioner.capture.lower.graph_def import bypass_identity_n, limit_trips_at_once, remove_colocations, share_reads
from tests.graph_defs import graph_def, inputs_of


def test_colocations_are_removed() -> None:
    graph = graph_def(("f", "MatMul", []), ("b", "MatMul", ["f"]))
    graph.node[1].attr["_class"].list.s.append(b"loc:@f")
    remove_colocations(graph)
    assert all("_class" not in node.attr for node in graph.node)


def test_readers_of_identity_n_read_through_it() -> None:
    graph = graph_def(
        ("g", "Neg", []),
        ("h", "Split", []),
        ("all", "IdentityN", ["g", "h:1", "^g"]),
        ("again", "IdentityN", ["all:1"]),
        ("first", "Neg", ["all"]),
        ("second", "Neg", ["again", "^all"]),
    )
    bypass_identity_n(graph, ["all", "again"])
    found = inputs_of(graph)
    assert found["first"] == ["g"]
    # The order with the IdentityN becomes an order with the last of what it waited for.
    assert found["second"][0] == "h:1"
    assert all(reference.lstrip("^") not in ("all", "again") for reference in found["second"])


def test_other_identity_n_are_left_alone() -> None:
    graph = graph_def(("g", "Neg", []), ("all", "IdentityN", ["g"]), ("x", "Neg", ["all"]))
    bypass_identity_n(graph, ["x"])
    assert inputs_of(graph)["x"] == ["all"]


def test_reads_before_the_first_write_become_one_and_later_ones_stay() -> None:
    rows = [
        ("v", "Placeholder", []),
        ("r1", "ReadVariableOp", ["v"]),
        ("r2", "ReadVariableOp", ["v"]),
        ("use1", "Neg", ["r1"]),
        ("use2", "Add", ["r2", "r1"]),
        ("write", "AssignVariableOp", ["v", "use2", "^r1", "^r2"]),
        ("r3", "ReadVariableOp", ["v", "^write"]),
        ("r4", "ReadVariableOp", ["v", "^write"]),
        ("use3", "Add", ["r3", "r4"]),
    ]
    graph = graph_def(*rows)
    shared = share_reads(graph, {name: index for index, (name, _, _) in enumerate(rows)}, {"v": "weight"})
    assert shared == {"r2": "r1"}
    found = inputs_of(graph)
    assert found["use2"] == ["r1", "r1"]
    assert found["write"] == ["v", "use2", "^r1"]
    assert found["use3"] == ["r3", "r4"]


def test_two_handles_of_one_variable_share_a_read_and_two_variables_do_not() -> None:
    rows = [
        ("v", "Placeholder", []),
        ("w", "Placeholder", []),
        ("u", "Placeholder", []),
        ("rv", "ReadVariableOp", ["v"]),
        ("rw", "ReadVariableOp", ["w"]),
        ("ru", "ReadVariableOp", ["u"]),
    ]
    order = {name: index for index, (name, _, _) in enumerate(rows)}
    assert share_reads(graph_def(*rows), order, {"v": "a", "w": "a", "u": "b"}) == {"rw": "rv"}


def test_order_of_effects_is_that_of_tracing_not_of_the_file() -> None:
    rows = [
        ("v", "Placeholder", []),
        ("r1", "ReadVariableOp", ["v"]),
        ("write", "AssignVariableOp", ["v"]),
        ("r2", "ReadVariableOp", ["v"]),
    ]
    order = {name: index for index, (name, _, _) in enumerate(rows)}
    assert share_reads(graph_def(*reversed(rows)), order, {"v": "a"}) == {}


def test_loops_of_loops_run_no_more_than_two_trips_at_once() -> None:
    def nested(x: Any) -> Any:
        inner = lambda y: tf.while_loop(lambda j, _: j < 3, lambda j, z: (j + 1, -z), (0, y), parallel_iterations=1)[1]  # noqa: E731
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, inner(y)), (0, x), parallel_iterations=32)[1]

    graph = tf.function(nested, autograph=False).get_concrete_function(tf.TensorSpec((2,))).graph.as_graph_def()
    limit_trips_at_once(graph)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    limits = [node.attr["parallel_iterations"].i for node in nodes if "parallel_iterations" in node.attr]
    assert sorted(limits) == [1, 2]
