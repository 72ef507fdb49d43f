"""The plan.json of a cost graph: read as it was written, by this version and by the first one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
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


def test_a_model_s_plan_is_shown_by_another_sub_command(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "partition-plan/1", "cost_graph": null}')
    with pytest.raises(UsageError) as raised:
        CostGraphPlan.load(path)
    assert "its schema is 'partition-plan/1'" in raised.value.message
    assert raised.value.help == f"partition show {path}"


@pytest.mark.parametrize("missing", ["contiguous", "compute"])
def test_an_old_plan_with_a_field_missing_is_refused(tmp_path: Path, missing: str) -> None:
    old = json.loads(OLD.read_text())
    del old["cost_graph"][missing]
    (tmp_path / "plan.json").write_text(json.dumps(old))
    with pytest.raises(UsageError, match=f"is no whole plan of a cost graph: KeyError '{missing}'"):
        CostGraphPlan.load(tmp_path / "plan.json")


def test_a_device_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    plan = json.loads(CostGraphPlan.load(OLD).to_json())
    plan["placement"]["1"] = "GPU:9"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(msgspec.ValidationError, match="devices that `devices` does not list: GPU:9"):
        CostGraphPlan.load(tmp_path / "plan.json")


def test_a_device_without_a_name_of_one_is_refused(tmp_path: Path) -> None:
    plan = json.loads(CostGraphPlan.load(OLD).to_json())
    plan["devices"].append({**plan["devices"][0], "name": "/job:lo=alhost/device:CPU:0"})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(msgspec.ValidationError, match="'/job:lo=alhost/device:CPU:0' is not a device"):
        CostGraphPlan.load(tmp_path / "plan.json")


def test_nothing_is_written_that_only_models_have() -> None:
    text = CostGraphPlan.load(OLD).to_json()
    assert text.startswith('{\n  "baselines"')  # sorted keys
    for key in ("gradient_bytes", "step_seconds", "num_parameters", "batch_size", "replica", "schedule"):
        assert f'"{key}"' not in text


@pytest.mark.parametrize(
    ("text", "schema"), [('{"schema": "partition-plan/1"}', "'partition-plan/1'"), ("[1]", "None")]
)
def test_a_document_of_another_kind_is_refused_with_its_schema(tmp_path: Path, text: str, schema: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match=f"its schema is {schema}, expected 'partition-cost-graph-plan/1'"):
        CostGraphPlan.load(tmp_path / "other.json")
