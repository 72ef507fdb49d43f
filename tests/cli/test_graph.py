"""`partition graph FILE`: cost graphs planned, shown again and checked without TensorFlow; refused with reasons."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Run


def test_a_workload_is_planned_shown_and_checked(run: Run, file, tmp_path: Path) -> None:
    code, out, err = run("graph", file(), "--contiguous", "--time-limit", "300")
    assert code == 0, err
    assert "cost graph, 4 nodes, 3 values, devices GPU:0, GPU:1 and CPU:0" in out
    assert "contiguous pieces on GPU:0 and GPU:1: largest load 7 ms" in out
    assert "objective 7, lower bound 7, gap 0.00 %" in err
    plan = json.loads((tmp_path / "work_partitioned" / "plan.json").read_text())
    solver = plan["solver"]
    assert (solver["status"], solver["objective"], solver["lower_bound"], solver["gap"]) == ("optimal", 7.0, 7.0, 0.0)
    assert (solver["unit"], solver["seed"]) == ("ms", 0)
    first, second = plan["placement"]["1"], plan["placement"]["4"]
    assert plan["placement"] == {"1": first, "2": first, "3": second, "4": second}
    assert first.startswith("/job:localhost/replica:0/task:0/device:GPU:") and first != second
    assert [(one["device"], one["compute"], one["transfer"], one["memory_bytes"]) for one in plan["pieces"]] == [
        (first, 6.0, 1.0, 20),
        (second, 6.0, 1.0, 20),
    ]
    assert (plan["schema"], plan["graph"]["source"]) == ("partition-cost-graph-plan/1", "work.json")
    assert "parameters" not in (tmp_path / "work_partitioned" / "placement.dot").read_text()
    assert run("show", "work_partitioned/plan.json", "-q") == (0, out.split("\nfiles\n")[0], "")
    code, out, _ = run("check", "work_partitioned/plan.json")
    assert code == 0
    assert out.startswith("the plan is allowed, and its largest load is 7 ms as it says\n")


def test_requirements_are_kept_recorded_and_checked(run: Run, file, tmp_path: Path) -> None:
    asked = ("--pin", "op1=GPU:1", "--forbid", "3|4=GPU:1,CPU:0", "--colocate", "op[12]", "--time-limit", "300", "-q")
    assert run("graph", file(), *asked)[0] == 0
    path = tmp_path / "work_partitioned" / "plan.json"
    plan = json.loads(path.read_text())
    assert {node: device[-5:] for node, device in plan["placement"].items()} == {
        "1": "GPU:1",
        "2": "GPU:1",
        "3": "GPU:0",
        "4": "GPU:0",
    }
    assert [one["kind"] for one in plan["requirements"]] == ["pin", "forbid", "colocate"]
    assert run("check", str(path), "-q")[0] == 0
    plan["requirements"][0]["devices"] = plan["requirements"][1]["devices"][1:]
    path.write_text(json.dumps(plan))
    code, _, err = run("check", str(path), "-q")
    assert code == 7
    assert "pin op1=CPU:0: node 1 is on " in err


def test_what_if(run: Run, file) -> None:
    code, out, _ = run("graph", file(), "--what-if", "--time-limit", "300", "-q", "--dry-run")
    assert code == 0
    # 7 on two; three have two nodes somewhere, and the value that leaves them; 6.5 where moves cost a half.
    assert "one more device like GPU:1" in out
    assert "twice the bandwidth of every link" in out
    assert "6.5 ms" in out and "7.1 % less" in out


def test_work_rather_than_the_clock_ends_the_search(run: Run, file) -> None:
    """A graph that takes seconds to close; what is known after the same work is the same."""
    size = 60
    nodes = [
        {"id": i, "cpuLatency": 99.0, "fpgaLatency": 1 + (7 * i % 13) / 3, "size": 0.1, "name": f"op{i}"}
        for i in range(size)
    ]
    edges = [
        {"sourceId": i, "destId": i + step, "cost": 0.3 + (5 * i % 7) / 4, "size": 8.0}
        for i in range(size)
        for step in (1, 4, 9)
        if i + step < size
    ]
    name, found = file(nodes=nodes, edges=edges, maxFPGAs=5), []
    for _ in range(2):
        code, out, err = run("graph", name, "--work-limit", "0.5", "--time-limit", "600", "--json", "-q")
        assert code == 0, err
        plan = json.loads(out)
        assert plan["solver"]["status"] == "feasible"
        found.append((plan["placement"], plan["solver"]["lower_bound"]))
    assert found[0] == found[1]


def test_devices_of_ones_own_take_the_place_of_the_files(run: Run, file) -> None:
    code, out, err = run("graph", file(), "--devices", "GPU:0-3", "--json", "--time-limit", "300", "-q", "--dry-run")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert [device["name"][-5:] for device in plan["devices"]] == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert plan["solver"]["objective"] == 5.0  # one each: 3 of work, a value in, a value out


@pytest.mark.parametrize(
    ("changed", "arguments", "code", "said"),
    [
        ({"maxFPGAs": 0, "maxCPUs": 0}, [], 2, "which devices? The cost graph is for 0 devices"),
        ({}, ["--devices", ""], 2, "error: "),
        ({}, ["--pin", "op9=GPU:0"], 2, "pin op9=GPU:0: matches no node; near: op4, op3"),
        ({}, ["--colocate", "op[12]", "--pin", "1=GPU:0", "--pin", "2=GPU:1"], 4, "colocate op[12]: 1, 2 share"),
        ({}, ["--batch-size", "64"], 2, "unknown option --batch-size\n   help: partition graph --help"),
        ({"edges": []}, ["--check"], 2, "--check is no option any more\n   help: partition check PLAN"),
        ({}, ["--work-limit", "0"], 2, "--work-limit: '0' is not a number above 0"),
        ({"nodes": []}, [], 3, "is not a sound cost graph"),
        ({"maxCPUs": 0, "maxSizePerFPGA": 15.0}, [], 4, "needs 40 bytes\n   |  have  30 bytes on 2 devices"),
        ({"maxCPUs": 0, "maxSizePerFPGA": 9.0, "maxFPGAs": 9}, [], 4, "node 1 must be on one device, and none has"),
        (
            {"maxCPUs": 0, "maxSizePerFPGA": 19.0, "maxFPGAs": 3},
            [],
            4,
            "no placement keeps to what is asked within the memory",
        ),
    ],
)
def test_what_cannot_be_planned_is_told(
    run: Run, file, tmp_path: Path, changed: dict[str, Any], arguments: list[str], code: int, said: str
) -> None:
    found, out, err = run("graph", file(**changed), *arguments, "--time-limit", "300", "-q")
    assert (found, out) == (code, "")
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["work.json"]


def test_nothing_heavy_is_imported(file, tmp_path: Path) -> None:
    script = (
        "import sys; from partitioner.cli import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'tensorflow', 'keras', 'ortools'} & set(sys.modules)), file=sys.stderr)"
    )
    command = (sys.executable, "-c", script, "graph", file(), "-q", "--time-limit", "300")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("x.json", '{"schema": "partition-plan/1"}', 2, "x.json is a plan (schema partition-plan/1)\n   help: part"),
        ("model.py", "", 2, "`partition graph` does not read\n   help: partition model.py --devices"),
        ("x.json", '{"schema": "other/1"}', 3, "x.json is not a sound cost graph"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_cost_graph(run: Run, tmp_path: Path, name: str, text: str, code: int, said: str) -> None:
    (tmp_path / name).write_text(text)
    got, out, err = run("graph", name, "-q")
    assert (got, out) == (code, "")
    assert said in err


def test_a_cost_graph_that_is_not_there(run: Run) -> None:
    code, _, err = run("graph", "x.json", "-q")
    assert code == 3
    assert "cannot read the cost graph 'x.json'" in err


def test_a_picture_that_cannot_be_drawn_is_told_and_the_run_goes_on(
    run: Run, file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partitioner.report.images.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run("graph", file(), "--time-limit", "300", "-q", "--svg", "a.svg", "--rankdir", "LR")
    assert code == 0
    assert err.startswith("warning: a.svg was not written: an SVG needs Graphviz")
    assert "pip install pygraphviz" in err
    assert "a.svg" not in out and not (tmp_path / "a.svg").exists()
    assert "rankdir=LR" in (tmp_path / "work_partitioned/placement.dot").read_text(encoding="utf-8")
