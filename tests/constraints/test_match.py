"""Requirements read against a graph: what a pattern matches, and everything that is wrong with them, at once."""

from __future__ import annotations

import pytest
from graphs import Builder

from partitioner.constraints.match import requirements_of, resolve_constraints
from partitioner.cost_graphs.constraints import resolve_node_constraints
from partitioner.cost_graphs.graph import CostGraph, CostNode
from partitioner.errors import UsageError
from partitioner.ir.devices import parse_devices
from partitioner.ir.op_graph import OpGraph

DEVICES = [[device] for device in parse_devices("GPU:0,GPU:1,GPU:2")]


def graph() -> OpGraph:
    made = Builder()
    made.add("embed/Gather", layer="encoder/embed")
    made.add("dense/MatMul", layer="encoder/dense")
    made.add("dense_1/MatMul", layer="head/dense_1")
    made.add("loss/Mean")
    return made.graph()


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("encoder/dense", {"dense/MatMul"}),
        ("encoder", {"embed/Gather", "dense/MatMul"}),
        ("encoder/.*", {"embed/Gather", "dense/MatMul"}),
        (".*dense.*", {"dense/MatMul", "dense_1/MatMul"}),
        ("loss/Mean", {"loss/Mean"}),
        (".*", {"embed/Gather", "dense/MatMul", "dense_1/MatMul", "loss/Mean"}),
    ],
)
def test_what_a_pattern_matches(pattern: str, matched: set[str]) -> None:
    asked = requirements_of({pattern: "GPU:1"}, {pattern: ["GPU:0", "GPU:2"]}, [pattern])
    pin, forbid, colocate = resolve_constraints(graph(), asked, DEVICES)
    assert [set(constraint.ops) for constraint in (pin, forbid, colocate)] == [matched] * 3
    assert (pin.devices, forbid.devices, colocate.devices) == ({1}, {1}, None)
    assert (pin.together, forbid.together, colocate.together) == (False, False, True)
    assert [constraint.text for constraint in (pin, forbid, colocate)] == [
        f"pin {pattern}=GPU:1",
        f"forbid {pattern}=GPU:0,GPU:2",
        f"colocate {pattern}",
    ]


def test_forbidden_devices_may_be_a_range() -> None:
    (constraint,) = resolve_constraints(graph(), requirements_of(forbid={"head": "GPU:0-1"}), DEVICES)
    assert constraint.devices == {2}


def test_what_is_forbidden_in_one_replica_is_so_in_all() -> None:
    twins = [parse_devices("GPU:0,GPU:2"), parse_devices("GPU:1,GPU:3")]
    (constraint,) = resolve_constraints(graph(), requirements_of(forbid={"head": "GPU:3"}), twins)
    assert constraint.devices == {0}
    with pytest.raises(UsageError, match="cannot be read") as raised:
        resolve_constraints(graph(), requirements_of({"head": "GPU:3"}), twins)
    assert raised.value.notes == ("pin head=GPU:3: GPU:3 is not among the devices (GPU:0, GPU:1)",)


def test_everything_wrong_is_reported_at_once() -> None:
    pins = {"encoder": "GPU:0", "dense": "GPU:0", "(": "GPU:0"}
    asked = requirements_of(pins, {"head": ["GPU:1", "GPU:7"]}, ["lost/Mean"])
    with pytest.raises(UsageError) as raised:
        resolve_constraints(graph(), asked, DEVICES)
    assert raised.value.message == "4 of 5 requirements cannot be read"
    missed, broken, absent, lost = raised.value.notes
    assert missed.startswith("pin dense=GPU:0: matches no layer and no op; near: ")
    assert "head/dense_1" in missed
    assert "encoder/dense" in missed
    assert broken.startswith("pin (=GPU:0: not a regular expression: ")
    assert absent == "forbid head=GPU:1,GPU:7: GPU:7 is not among the devices (GPU:0, GPU:1, GPU:2)"
    assert lost.startswith("colocate lost/Mean: matches no layer and no op; near: ")


def test_devices_that_are_none() -> None:
    with pytest.raises(UsageError) as raised:
        requirements_of({"a": "TPU:0", "b": "GPU:0,GPU:1"}, {"c": "GPU"})
    unknown, several, no_device = raised.value.notes
    assert unknown.startswith("pin a=TPU:0: ") and "expected CPU or GPU" in unknown
    assert several == "pin b=GPU:0,GPU:1: a pin names one device, not 2"
    assert no_device.startswith("forbid c=GPU: 'GPU' is not a device")


def test_nodes_go_by_id_and_description() -> None:
    nodes = [CostNode(id=f"{n}", description=text, accelerator_cost=1.0, cpu_cost=1.0) for n, text in enumerate("aab")]
    made = CostGraph(nodes=tuple(nodes), values=())
    devices = parse_devices("GPU:0,GPU:1")
    constraints = resolve_node_constraints(made, requirements_of({"a": "GPU:0", "2": "GPU:1"}), devices)
    assert [constraint.ops for constraint in constraints] == [("0", "1"), ("2",)]
    with pytest.raises(UsageError) as raised:
        resolve_node_constraints(made, requirements_of(colocate=["aa"]), devices)
    assert raised.value.notes == ("colocate aa: matches no node; near: a",)


def test_none() -> None:
    assert resolve_constraints(graph(), requirements_of(), DEVICES) == ()
