"""The op graph in plan.json: columns by hand, what is cut, the size of a plan, and that a loaded plan has all of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from documents import plan_of, split_training

from partitioner.ir.plan import PlanDocument, StageEdge
from partitioner.ir.planned_ops import CutOp, PlannedOps
from partitioner.planner.document import ops as planned


@pytest.fixture
def plan() -> PlanDocument:
    """x f0 | f1 loss b1 d1 | b0 d0, with reads and updates; stage 0 is GPU:1."""
    return plan_of(*split_training())


def test_columns_by_hand(plan: PlanDocument) -> None:
    ops, names = plan.ops, sorted(plan.placement)
    assert len(ops) == len(names) == 10
    row = names.index
    assert ops.inputs[row("f1")] == (row("f0"),)
    assert ops.stages == tuple(int(name not in ("x", "f0", "b0", "d0", "u0")) for name in names)
    letters = {"x": "f", "f": "f", "l": "f", "b": "b", "d": "b", "u": "u"}
    assert ops.phases == "".join(letters[name[0]] for name in names)
    boxes = {"x": "x", "f0": "layer0", "u1": "layer1", "loss": "loss"}
    assert {name: plan.layers[ops.layers[row(name)]].name for name in boxes} == boxes


def test_cuts_are_what_stages_send(plan: PlanDocument) -> None:
    """f0's output of 256 bytes goes on, b1's gradient of as many comes back: as the stages say that they send."""
    row = sorted(plan.placement).index
    forward, back = CutOp(op=row("f0"), stage=1, size_bytes=256), CutOp(op=row("b1"), stage=0, size_bytes=256)
    assert set(plan.ops.cuts) == {forward, back}
    assert plan.stage_edges == (StageEdge(source=0, target=1, size_bytes=256, gradient_bytes=256),)
    assert [stage.send_bytes for stage in plan.stages] == [256, 256]


def test_a_loaded_plan_has_its_ops(plan: PlanDocument) -> None:
    assert PlanDocument.from_json(plan.to_json()) == plan


def test_plans_of_earlier_versions_have_none(plan: PlanDocument) -> None:
    fields = json.loads(plan.to_json())
    del fields["ops"], fields["stage_edges"]
    earlier = PlanDocument.from_json(json.dumps(fields))
    assert (len(earlier.ops), earlier.stage_edges) == (0, ())


def test_graphs_with_too_many_ops_keep_none_but_their_stages_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "MOST_OPS", 9)
    large = plan_of(*split_training())
    assert len(large.ops) == 0
    assert large.stage_edges[0].size_bytes == 256


def test_columns_that_do_not_fit_are_refused(plan: PlanDocument) -> None:
    with pytest.raises(ValueError, match=r"columns of `ops` have different lengths: \[0, 1\]"):
        PlannedOps(types=("MatMul",))
    with pytest.raises(ValueError, match="`ops` has 10 rows, but the placement 9 ops"):
        replace(plan, placement={name: where for name, where in plan.placement.items() if name != "u1"})
