"""`partition verify PLAN MODEL`: a model placed by a saved plan and held against the unplaced one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import SMALL, Run

PLAN = "small_partitioned/plan.json"


@pytest.fixture
def planned(run: Run) -> Run:
    arguments = ("--devices", "CPU:0,CPU:1", "--strategy", "layer-split", "--time-limit", "5", "-q", "--no-verify")
    assert run(SMALL, *arguments)[0] == 0
    return run


def test_a_saved_plan_is_run_and_verified(planned: Run, tmp_path: Path) -> None:
    code, out, err = planned("verify", PLAN, SMALL, "--json")
    assert code == 0
    verification = json.loads(out)["verification"]
    assert verification["passed"]
    assert verification["misplaced_ops"] == []
    assert [line.split("] ")[1] for line in err.splitlines()] == [
        "loading TensorFlow ...",
        f"loading {SMALL} ...",
        "placing ...",
        "verifying against the unplaced model ...",
        "measuring steps ...",
    ]
    assert json.loads((tmp_path / PLAN).read_text())["verification"] is None


@pytest.mark.usefixtures("verification_fails")
def test_a_failed_verification_exits_6(planned: Run) -> None:
    code, out, err = planned("verify", PLAN, SMALL, "-q")
    assert code == 6
    assert out.startswith("small (")
    assert err.startswith("error: the placed model failed its verification\n")
    assert "misplaced ops: 1" in err


def test_a_plan_of_another_model(planned: Run) -> None:
    code, out, err = planned("verify", PLAN, f"{SMALL}:build_model(width=16)", "-q")
    assert (code, out) == (2, "")
    assert "error: " in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.json"], "required: MODEL\n   help: partition verify --help"),
        ([SMALL, "x.json"], "error: cannot read 'x.json': No such file or directory"),
        ([SMALL, SMALL], "is a model, which `partition verify` does not read"),
        (["x.json", SMALL], "error: cannot read 'x.json': No such file or directory"),
    ],
)
def test_wrong_usage_is_refused_before_tensorflow_loads(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run("verify", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err


def test_a_plan_of_a_cost_graph_has_no_model(run: Run, file: Callable[..., str]) -> None:
    assert run("graph", file(), "--time-limit", "300", "-q")[0] == 0
    code, _, err = run("verify", "work_partitioned/plan.json", SMALL)
    assert code == 2
    assert "help: partition check work_partitioned/plan.json" in err


def test_what_was_measured_is_kept_beside_the_plan(planned: Run, tmp_path: Path) -> None:
    folder = (tmp_path / PLAN).parent
    (folder / "report.html").unlink(missing_ok=True)
    assert planned("verify", str(folder), SMALL, "--write", "-q")[0] == 0
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["verification"]["passed"] and plan["measured"]["step_seconds"] > 0
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "measured step" in names and "predicted step" in names
    assert 'data-figure="measured step"' in (folder / "report.html").read_text()
