"""What belongs together, on hand-made ops: an update step of two parameters with slots, clipped by a global norm."""

from __future__ import annotations

import pytest

from partitioner.capture.lower.graph_def import READ
from partitioner.capture.lower.grouping import RawOp, colocation_groups, parameter_of_slots
from partitioner.ir.op_graph import Phase

GRADIENT_OF = {"dw:0": frozenset(["w"]), "db:0": frozenset(["b"])}


def op(
    name: str,
    inputs: str = "",
    variables: str = "",
    *,
    op_type: str = "Mul",
    phase: Phase = Phase.UPDATE,
    differentiates: str = "",
    is_scalar: bool = False,
) -> RawOp:
    return RawOp(
        name=name,
        type=op_type,
        phase=phase,
        inputs=tuple(f"{one}:0" for one in inputs.split()),
        variables=tuple(variables.split()),
        differentiates=differentiates,
        is_scalar=is_scalar,
    )


FORWARD = [
    op("x", op_type="Placeholder", phase=Phase.FORWARD),
    op("read_w", "", "w", op_type=READ, phase=Phase.FORWARD),
    op("matmul", "x read_w", phase=Phase.FORWARD),
    op("read_b", "", "b", op_type=READ, phase=Phase.FORWARD),
    op("add", "matmul read_b", phase=Phase.FORWARD),
    op("db", "add", phase=Phase.BACKWARD, differentiates="add"),
    op("dw", "x add", phase=Phase.BACKWARD, differentiates="matmul"),
]


def momentum(parameter: str, gradient: str) -> list[RawOp]:
    """m = 0.9 m + rate * gradient; parameter -= m."""
    p = parameter
    return [
        op(f"read_m{p}", "", f"m{p}", op_type=READ),
        op(f"decay_{p}", op_type="Const", is_scalar=True),
        op(f"old_{p}", f"read_m{p} decay_{p}"),
        op(f"new_{p}", f"{gradient} rate"),
        op(f"m_{p}", f"old_{p} new_{p}"),
        op(f"assign_m{p}", f"m_{p}", f"m{p}", op_type="AssignVariableOp"),
        op(f"assign_{p}", f"m_{p}", p, op_type="AssignSubVariableOp"),
    ]


RATE = [
    op("rate", "", "learning_rate", op_type=READ, is_scalar=True),
    op("step", "", "iteration", op_type="AssignAddVariableOp"),
]
PLAIN = [*FORWARD, *RATE, *momentum("w", "dw"), *momentum("b", "db")]
CLIPPED = [
    *FORWARD,
    *RATE,
    op("norm_w", "dw", is_scalar=True),
    op("norm_b", "db", is_scalar=True),
    op("norm", "norm_w norm_b", is_scalar=True),
    op("clip_w", "dw norm"),
    op("clip_b", "db norm"),
    *momentum("w", "clip_w"),
    *momentum("b", "clip_b"),
]
SLOTS = ["learning_rate", "iteration", "mw", "mb"]


@pytest.mark.parametrize("ops", [PLAIN, CLIPPED], ids=["plain", "clipped by a global norm"])
def test_slots_serve_the_parameter_whose_gradient_is_written_to_them(ops: list[RawOp]) -> None:
    assert parameter_of_slots(ops, GRADIENT_OF, ["w", "b"], SLOTS) == {"mw": "w", "mb": "b"}


@pytest.mark.parametrize("ops", [PLAIN, CLIPPED], ids=["plain", "clipped by a global norm"])
def test_an_update_sits_with_its_parameter_and_slot(ops: list[RawOp]) -> None:
    groups = colocation_groups(ops, GRADIENT_OF, {"mw": "w", "mb": "b", "w": "w", "b": "b"})
    for p in "wb":
        names = [f"read_{p}", f"assign_{p}", f"read_m{p}", f"assign_m{p}", f"m_{p}", f"new_{p}", f"old_{p}"]
        assert {groups[name] for name in [*names, f"decay_{p}"]} == {f"read_{p}"}


def test_backward_ops_sit_with_the_forward_op_they_differentiate() -> None:
    groups = colocation_groups(PLAIN, GRADIENT_OF, {"w": "w", "b": "b"})
    assert groups["dw"] == groups["matmul"] == "matmul"
    assert groups["db"] == groups["add"] == "add"
    # What is neither bound to a variable nor to another op is free: alone, in no group.
    assert "x" not in groups
    assert len({groups["matmul"], groups["add"], groups["read_w"], groups["read_b"]}) == 4


def test_what_serves_all_parameters_belongs_to_none() -> None:
    groups = colocation_groups(CLIPPED, GRADIENT_OF, {"mw": "w", "mb": "b", "w": "w", "b": "b"})
    bound = {groups["read_w"], groups["read_b"]}
    assert groups.get("norm") not in bound
    assert groups.get("rate") not in bound
    assert groups.get("step") not in bound


def test_one_variable_used_by_two_layers_is_one_group() -> None:
    ops = [
        op("gather", "", "table", op_type="ResourceGather", phase=Phase.FORWARD),
        op("read", "", "table", op_type=READ, phase=Phase.FORWARD),
        op("scores", "read gather", phase=Phase.FORWARD),
    ]
    assert colocation_groups(ops, {}, {}) == {"gather": "gather", "read": "gather"}


def test_a_constant_joins_its_only_reader_and_stays_free_with_two() -> None:
    ops = [
        op("only", op_type="Const", phase=Phase.FORWARD),
        op("both", op_type="Const", phase=Phase.FORWARD),
        op("read_a", "", "a", op_type=READ, phase=Phase.FORWARD),
        op("use_a", "only both", "a", phase=Phase.FORWARD),
        op("use_b", "both", "b", phase=Phase.FORWARD),
    ]
    groups = colocation_groups(ops, {}, {})
    assert groups["only"] == groups["use_a"] == groups["read_a"]
    assert "both" not in groups
