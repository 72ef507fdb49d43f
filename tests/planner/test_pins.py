"""Pins: what a pattern matches, and everything that is wrong with them, at once."""

from __future__ import annotations

import pytest
from graphs import Builder

from partitioner.errors import UsageError
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.pins import pinned_ops
from partitioner.planner.topology import parse_devices

DEVICES = parse_devices("GPU:0,GPU:1")


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
    assert pinned_ops(graph(), {pattern: "GPU:1"}, DEVICES) == dict.fromkeys(matched, 1)


def test_two_pins_that_agree() -> None:
    assert pinned_ops(graph(), {"encoder": "GPU:0", "encoder/dense": "GPU:0"}, DEVICES) == {
        "embed/Gather": 0,
        "dense/MatMul": 0,
    }


def test_everything_wrong_is_reported_at_once() -> None:
    pins = {
        "encoder": "GPU:0",
        "encoder/dense": "GPU:1",
        "dense": "GPU:0",
        "(": "GPU:0",
        "head": "GPU:7",
        "loss.*": "TPU:0",
    }
    with pytest.raises(UsageError) as raised:
        pinned_ops(graph(), pins, DEVICES)
    assert raised.value.message == "5 of 6 pins cannot be met"
    contradiction, missed, broken, absent, unknown = raised.value.notes
    assert contradiction == "encoder/dense=GPU:1: encoder/dense is already pinned by 'encoder'"
    assert missed.startswith("dense=GPU:0: matches no layer and no op; near: ")
    assert "head/dense_1" in missed
    assert "encoder/dense" in missed
    assert broken.startswith("(=GPU:0: not a regular expression: ")
    assert absent == "head=GPU:7: GPU:7 is not among the devices (GPU:0, GPU:1)"
    assert unknown.startswith("loss.*=TPU:0: ")
    assert "expected CPU or GPU" in unknown


def test_no_pins() -> None:
    assert pinned_ops(graph(), {}, DEVICES) == {}
