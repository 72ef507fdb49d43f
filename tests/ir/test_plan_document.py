"""plan.json: the keys that others script against, what it refuses, and the same text for the same seed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import partitioner
from partitioner.ir.plan import PlanDocument

KEYS = {
    "": {
        "schema", "model", "devices", "strategy", "num_replicas", "num_stages", "num_microbatches",
        "schedule", "updates", "stages", "placement", "predicted", "baselines", "solver",
        "uncosted_ops", "verification", "versions",
    },
    "model": {"source", "fingerprint", "num_ops", "num_parameters", "batch_size", "training"},
    "devices": {"name", "hardware", "origin", "memory_bytes"},
    "stages": {
        "index", "replica", "device", "layers", "num_ops", "parameter_bytes", "peak_bytes", "compute_seconds",
        "send_bytes",
    },
    "predicted": {"step_seconds", "latency_seconds", "bottleneck_stage", "bubble_fraction", "peak_bytes"},
    "baselines": {"name", "step_seconds", "fits"},
    "solver": {"status", "objective", "lower_bound", "gap", "seconds", "seed"},
}  # fmt: skip
"""The contract of the design: keys may be added, never taken away."""


def make_plan(**options) -> PlanDocument:
    import keras

    keras.backend.clear_session()
    model = keras.Sequential(
        [keras.Input((16,)), *(keras.layers.Dense(16, activation="relu") for _ in range(4))], name="small"
    )
    model.compile(optimizer="adam", loss="mse")
    arguments = {"devices": "GPU:0-1", "batch_size": 8, "strategy": "layer-split", "time_limit": 10}
    return partitioner.plan(model, **(arguments | options))


@pytest.fixture(scope="module")
def plan() -> PlanDocument:
    return make_plan()


def test_every_key_of_the_contract_is_there(plan: PlanDocument) -> None:
    data = json.loads(plan.to_json())
    assert data["schema"] == "partition-plan/1"
    for name, keys in KEYS.items():
        part = data[name] if name else data
        for one in part if isinstance(part, list) else [part]:
            assert keys <= set(one)
    assert data["verification"] is None


def test_keys_are_sorted(plan: PlanDocument) -> None:
    def check(value: object) -> None:
        if isinstance(value, dict):
            assert list(value) == sorted(value)
            for one in value.values():
                check(one)
        elif isinstance(value, list):
            for one in value:
                check(one)

    check(json.loads(plan.to_json()))


def test_every_op_is_on_a_device_and_names_are_canonical(plan: PlanDocument) -> None:
    assert len(plan.placement) == plan.model.num_ops
    canonical = re.compile(r"/job:\w+/replica:\d+/task:\d+/device:(CPU|GPU):\d+")
    assert all(canonical.fullmatch(name) for name in plan.placement.values())
    assert sum(stage.num_ops for stage in plan.stages) == plan.model.num_ops
    assert sum(stage.parameter_bytes for stage in plan.stages) == 4 * plan.model.num_parameters == 4 * 4 * 272


def test_one_seed_gives_one_text_but_for_the_seconds(plan: PlanDocument) -> None:
    def text(one: PlanDocument) -> str:
        return replace(one, solver=replace(one.solver, seconds=0.0)).to_json()

    assert text(make_plan()) == text(plan)


def test_saved_plans_come_back(plan: PlanDocument, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert type(plan).load(tmp_path / "plan.json") == plan
    assert (tmp_path / "plan.json").read_text().endswith("}\n")


def test_another_schema_is_refused(plan: PlanDocument) -> None:
    text = plan.to_json().replace("partition-plan/1", "partition-plan/9")
    with pytest.raises(msgspec.ValidationError, match=r"'partition-plan/9', this version reads 'partition-plan/1'"):
        PlanDocument.from_json(text)


def test_a_device_that_is_not_listed_is_refused(plan: PlanDocument) -> None:
    with pytest.raises(ValueError, match="devices that `devices` does not list: elsewhere"):
        replace(plan, placement={**plan.placement, "x": "elsewhere"})


def test_a_missing_field_is_named(plan: PlanDocument) -> None:
    data = json.loads(plan.to_json())
    del data["solver"]["gap"]
    with pytest.raises(msgspec.ValidationError, match=r"missing required field `gap`.*solver"):
        PlanDocument.from_json(json.dumps(data))


def test_used_devices_are_those_of_the_stages(plan: PlanDocument) -> None:
    assert plan.used_devices == tuple(stage.device for stage in plan.stages)
    assert len(plan.used_devices) == 2


def test_a_plan_of_the_first_version_is_read() -> None:
    """It may have a field for cost graphs, which have a document of their own by now."""
    old = json.loads((Path(__file__).parents[1] / "golden/cli_plan.json").read_text()) | {"cost_graph": None}
    plan = PlanDocument.from_json(json.dumps(old))
    assert plan.num_stages == len(old["stages"])
    assert set(old) - set(json.loads(plan.to_json())) == {"cost_graph"}
