"""Every type that flows comes back from its JSON as it was, and the same value gives the same text."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.specs import ITEM_BYTES, TensorSpec
from partitioner.ir.devices import DeviceName
from partitioner.ir.json import from_json, to_json
from partitioner.ir.op_graph import Layer, Op, OpGraph, Phase, Tensor, Variable, VariableKind
from partitioner.ir.plan import (
    Baseline,
    DeviceInfo,
    ModelInfo,
    PlannedEdge,
    PlannedLayer,
    Predicted,
    SolverInfo,
    Stage,
    Verification,
)
from partitioner.ir.problem import (
    Item,
    PlacementProblem,
    ProblemDevice,
    ProblemLink,
    Solution,
    Task,
    Transfer,
)
from partitioner.ir.schedule import MemoryUse, OpRun, Schedule, Send

settings.register_profile("ir", deadline=None, derandomize=True, max_examples=30, database=None)
settings.load_profile("ir")

_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_SIZES = st.integers(0, 2**53)
_TEXT = st.text(max_size=8)
_SPECS = st.builds(
    TensorSpec,
    shape=st.lists(st.integers(0, 64), max_size=4).map(tuple),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
)
# A whole float reads back as a float only where the type asks for one; attributes may be either.
_ATTRIBUTES = st.one_of(st.booleans(), _SIZES, st.floats(0.25, 0.75), _TEXT, st.lists(_SIZES, max_size=3).map(tuple))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a dataclass whose fields need not agree with each other."""
    strategies = {
        "int": _SIZES,
        "float": _FINITE,
        "str": _TEXT,
        "bool": st.booleans(),
        "TensorSpec": _SPECS,
        "dict[str, AttributeValue]": st.dictionaries(_TEXT, _ATTRIBUTES, max_size=3),
        "Phase": st.sampled_from(Phase),
        "VariableKind": st.sampled_from(VariableKind),
    }
    return st.builds(kind, **{f.name: strategies[str(f.type)] for f in fields(kind) if str(f.type) in strategies})


@pytest.mark.parametrize(
    "kind",
    [
        Op, Tensor, Variable, Layer, ModelInfo, DeviceInfo, Stage, Predicted, Baseline, SolverInfo,
        Verification, PlannedLayer, PlannedEdge, ProblemDevice, Item, Task, Transfer, ProblemLink,
        OpRun, Send, MemoryUse, DeviceName,
    ],
)  # fmt: skip
@given(data=st.data())
def test_values_come_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    text = to_json(value)
    assert from_json(text, kind) == value
    assert to_json(from_json(text, kind)) == text


def op_graph() -> OpGraph:
    spec = TensorSpec(shape=(2, 3), dtype="bfloat16")
    return OpGraph(
        name="g",
        batch_size=2,
        training=True,
        ops=(
            Op(
                name="a",
                type="Conv2D",
                outputs=("a:0",),
                attributes={"strides": (1, 2), "data_format": "NHWC"},
            ),
            Op(
                name="b",
                type="Relu",
                inputs=("a:0",),
                outputs=("b:0",),
                control_inputs=("a",),
                variables=("w",),
            ),
        ),
        tensors=(Tensor(name="a:0", producer="a", spec=spec), Tensor(name="b:0", producer="b", spec=spec)),
        variables=(Variable(name="w", spec=spec, kind=VariableKind.SLOT, parameter="v", layer="l"),),
        layers=(Layer(path="l", class_name="Dense", output_shape="(None, 3)"),),
        inputs=("a:0",),
        outputs=("b:0",),
    )


PROBLEM = PlacementProblem(
    devices=(ProblemDevice(name="d", capacity_bytes=9),),
    links=((ProblemLink(latency_ns=1, picoseconds_per_byte=2),),),
    items=(Item(name="i", memory_bytes=3, allowed_devices=(0,)), Item(name="j", memory_bytes=0)),
    tasks=(Task(item=0, duration_ns=(1,)), Task(item=1, duration_ns=(2,))),
    transfers=(Transfer(source=0, targets=(1,), size_bytes=5),),
    hints=((0, 0),),
    seed=7,
)
SCHEDULE = Schedule(
    step_seconds=0.1,
    busy_seconds={"d": 1 / 3},
    peak={"d": MemoryUse(parameter_bytes=3, gradient_bytes=1)},
    runs=(OpRun(op="a", device="d", start_seconds=0.0, end_seconds=1e-9),),
    sends=(Send(tensor="a:0", source="d", target="e", size_bytes=1, start_seconds=0.5, end_seconds=0.75),),
)
SOLUTION = Solution(status="feasible", assignment=(0, 0), makespan_ns=3, shortest_ns=3, lower_bound_ns=3)


@pytest.mark.parametrize("value", [op_graph(), PROBLEM, SCHEDULE, SOLUTION], ids=lambda value: type(value).__name__)
def test_wholes_come_back(value: Any) -> None:
    assert from_json(to_json(value), type(value)) == value
    assert from_json(to_json(value, indent=2), type(value)) == value


def test_keys_are_sorted_at_every_level() -> None:
    def is_sorted(value: Any) -> bool:
        if isinstance(value, dict):
            return list(value) == sorted(value) and all(map(is_sorted, value.values()))
        return not isinstance(value, list) or all(map(is_sorted, value))

    assert is_sorted(json.loads(to_json(op_graph())))
    assert is_sorted(json.loads(to_json(PROBLEM)))


def test_a_wrong_field_is_named() -> None:
    text = to_json(PROBLEM).replace('"memory_bytes":3', '"memory_bytes":"3"')
    with pytest.raises(msgspec.ValidationError, match=r"\$\.items\[0\]\.memory_bytes"):
        from_json(text, PlacementProblem)


def test_a_broken_promise_is_told_on_the_way_in() -> None:
    text = to_json(PROBLEM).replace('"memory_bytes":3', '"memory_bytes":-3')
    with pytest.raises(msgspec.ValidationError, match="negative memory: -3 bytes"):
        from_json(text, PlacementProblem)
