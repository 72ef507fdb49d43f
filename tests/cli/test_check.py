"""`partition check PLAN`: a cost graph's plan computed anew; what is wrong with it ends with exit code 7."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import GOLDEN, Run


def test_a_changed_plan_fails_its_check(run: Run, file, tmp_path: Path) -> None:
    run("graph", file(), "--time-limit", "300", "-q")
    path = tmp_path / "work_partitioned" / "plan.json"
    plan = json.loads(path.read_text())
    plan["solver"]["objective"] = 6.5
    path.write_text(json.dumps(plan))
    code, out, err = run("check", str(path), "--workload", "work.json")
    assert (code, out) == (7, "")
    assert "the plan says its largest load is 6.5, it is 7" in err
    code, out, _ = run("check", str(path), "--workload", "work.json", "--json")
    result = json.loads(out)
    assert (code, result["schema"], result["objective"]) == (7, "partition-check/1", 7)
    assert result["problems"][0] == "the plan says its largest load is 6.5, it is 7"
    (tmp_path / "work.json").unlink()
    code, _, err = run("check", str(path))
    assert code == 2
    assert "say where it is: --workload FILE" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ((GOLDEN / "cli_plan.json").read_text(encoding="utf-8"), "help: partition verify plan.json "),
        ('{"nodes": [], "edges": []}', "plan.json is not a plan: it has no schema\n   help: if it is a cost graph"),
        ('{"schema": "other/1"}', "plan.json is not a plan: "),
        (None, "cannot read 'plan.json': No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_no_plan_of_a_cost_graph_is_refused(run: Run, tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    code, out, err = run("check", "plan.json")
    assert (code, out) == (2, "")
    assert said in err


def test_the_workload_must_be_a_cost_graph(run: Run, file: Callable[..., str]) -> None:
    assert run("graph", file(), "--time-limit", "300", "-q")[0] == 0
    code, _, err = run("check", "work_partitioned/plan.json", "--workload", "work_partitioned/plan.json")
    assert code == 2
    assert "work_partitioned/plan.json is a plan (schema " in err
