"""Devices in a GraphDef: on every node, in bodies of loops and calls, and on a copy of a constant per device."""

from __future__ import annotations

from partitioner.emit.graph.graph_def import copy_to_loops, place_graph_def
from tests.graph_defs import graph_def, inputs_of

ZERO, ONE = "/device:CPU:0", "/device:CPU:1"


def test_every_node_gets_its_device_and_the_original_is_left_alone() -> None:
    graph = graph_def(("a", "Placeholder", []), ("b", "Neg", ["a"]), ("handle", "Placeholder", []))
    placed = place_graph_def(graph, {"a": ZERO, "b": ONE}, "p")
    assert {node.name: node.device for node in placed.node} == {"a": ZERO, "b": ONE, "handle": ""}
    assert {node.device for node in graph.node} == {""}


def test_a_constant_is_copied_once_to_each_other_device_that_reads_it() -> None:
    graph = graph_def(
        ("c", "Const", []),
        ("here", "Neg", ["c"]),
        ("there", "Neg", ["c"]),
        ("there_too", "Add", ["there", "c"]),
    )
    placed = place_graph_def(graph, {"c": ZERO, "here": ZERO, "there": ONE, "there_too": ONE}, "p")
    assert inputs_of(placed) == {
        "c": [],
        "c/copy_0": [],
        "here": ["c"],
        "there": ["c/copy_0"],
        "there_too": ["there", "c/copy_0"],
    }
    assert {n.name: n.device for n in placed.node if n.op == "Const"} == {"c": ZERO, "c/copy_0": ONE}


def test_a_constant_that_waits_for_something_is_not_copied() -> None:
    graph = graph_def(("a", "NoOp", []), ("c", "Const", ["^a"]), ("b", "Neg", ["c"]))
    placed = place_graph_def(graph, {"a": ZERO, "c": ZERO, "b": ONE}, "p")
    assert inputs_of(placed) == {"a": [], "c": ["^a"], "b": ["c"]}


def test_loops_straight_on_arguments_run_on_their_device() -> None:
    """Such a loop variable stayed where the argument was, on the host."""
    graph = graph_def(
        ("x", "Placeholder", []), ("one", "While", ["x", "x"]), ("two", "While", ["x"]), ("b", "Neg", ["x"])
    )
    placed = place_graph_def(graph, {"one": ZERO, "two": ONE, "b": ONE}, "p")
    copy_to_loops(placed, ["x"])
    assert inputs_of(placed) == {
        "x": [],
        "one": ["x_for_loops_0", "x_for_loops_0"],
        "two": ["x_for_loops_1"],
        "b": ["x"],
        "x_for_loops_0": ["x"],
        "x_for_loops_1": ["x"],
    }
    assert {n.name: n.device for n in placed.node if n.op == "Identity"} == {
        "x_for_loops_0": ZERO,
        "x_for_loops_1": ONE,
    }


def test_bodies_are_copied_per_device_down_to_the_innermost_call() -> None:
    graph = graph_def(("first", "While", []), ("second", "While", []), ("again", "While", []))
    for node in graph.node:
        node.attr["body"].func.name = "body"
    outer = graph.library.function.add()
    outer.signature.name = "body"
    outer.node_def.add(name="call", op="inner")
    inner = graph.library.function.add()
    inner.signature.name = "inner"
    inner.node_def.add(name="x", op="NoOp")
    placed = place_graph_def(graph, {"first": ZERO, "second": ONE, "again": ZERO}, "p")
    library = {function.signature.name: function for function in placed.library.function}
    bodies = {node.name: node.attr["body"].func.name for node in placed.node}
    assert bodies["first"] == bodies["again"] != bodies["second"]
    assert len(library) == 4
    for loop, device in (("first", ZERO), ("second", ONE)):
        (call,) = library[bodies[loop]].node_def
        (leaf,) = library[call.op].node_def
        assert (call.device, leaf.device) == (device, device)
    assert [function.signature.name for function in graph.library.function] == ["body", "inner"]


def test_branches_in_a_list_attribute_are_placed_too() -> None:
    graph = graph_def(("case", "Case", []))
    graph.node[0].attr["branches"].list.func.add(name="branch")
    function = graph.library.function.add()
    function.signature.name = "branch"
    function.node_def.add(name="x", op="NoOp")
    placed = place_graph_def(graph, {"case": ONE}, "p")
    (copy,) = placed.library.function
    assert placed.node[0].attr["branches"].list.func[0].name == copy.signature.name
    assert copy.node_def[0].device == ONE
