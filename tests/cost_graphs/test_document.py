"""The plan.json of a cost graph: read as it was written, by this version and by the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.cost_graphs.document import SCHEMA, CostGraphPlan
from partitioner.errors import UsageError

OLD = Path(__file__).parent / "plan_of_0_1_0.json"
"""Of a chain of four nodes, 3 ms each, 1 ms to move a value, on two accelerators and a CPU ten times slower."""
GPU0, GPU1, CPU0 = (f"/job:localhost/replica:0/task:0/device:{name}" for name in ("GPU:0", "GPU:1", "CPU:0"))


def test_a_plan_of_the_first_version_is_read() -> None:
    plan = CostGraphPlan.load(OLD)
    assert (plan.schema, plan.source, plan.graph.unit, plan.contiguous) == (SCHEMA, "work.json", "ms", True)
    assert plan.placement == {"1": GPU1, "2": GPU1, "3": GPU0, "4": GPU0}
    assert [(piece.device, piece.nodes) for piece in plan.pieces] == [(GPU1, ("1", "2")), (GPU0, ("3", "4"))]
    # Two nodes of 3 ms, and the value between the pieces.
    assert [(piece.compute, piece.transfer, piece.load) for piece in plan.pieces] == [(6.0, 1.0, 7.0)] * 2
    assert [(one.name, one.memory_bytes) for one in plan.devices] == [(GPU0, 30), (GPU1, 30), (CPU0, None)]
    assert (plan.solver.status, plan.solver.objective) == ("optimal", 7.0)
    assert [(one.name, one.load) for one in plan.baselines] == [
        ("single-device GPU:0", pytest.approx(12.0)),
        ("single-device CPU:0", pytest.approx(120.0)),
    ]
    assert [one.text for one in plan.requirements] == ["pin op1=GPU:1"]
    assert plan.what_if
    assert "largest load 7 ms" in plan.to_text()


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = CostGraphPlan.load(OLD)
    plan.save(tmp_path / "plan.json")
    assert CostGraphPlan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("text", "schema"), [('{"schema": "partition-plan/1"}', "'partition-plan/1'"), ("[1]", "None")]
)
def test_a_document_of_another_kind_is_refused_with_its_schema(tmp_path: Path, text: str, schema: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match=f"its schema is {schema}, expected 'partition-cost-graph-plan/1'"):
        CostGraphPlan.load(tmp_path / "other.json")
