"""`partition explain PLAN [MODEL]`: the true bottleneck of real plans, and moves that gain what is said."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import GOLDEN, MODELS, Run

STACK = str(MODELS / "stack.py")
SLOW_GPUS = """
[[devices]]
names = "GPU:0-{last}"
memory = "{memory}"
[devices.hardware]
peak_flops = {{ float32 = 1e10 }}
memory_bytes = 16e9
memory_bandwidth_bytes_per_second = 1e13
launch_overhead_seconds = 1e-8

[[links]]
among = "GPU:0-{last}"
[links.link]
bandwidth_bytes_per_second = {bandwidth}
latency_seconds = 1e-8
"""
"""Four equal layers on such GPUs compute 37 ms, and little else takes time; what is between two layers is 256 KiB."""

CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # Two replicas that have little to send compute all the time.
    "compute": ({}, ("--strategy", "mirrored")),
    # Three layers of four on one device, and enough microbatches to fill it.
    "imbalance": ({}, ("--microbatches", "8", "--pin", "layer_[0-2]=GPU:0", "--pin", "layer_3=GPU:1")),
    # 256 KiB there and back take 105 ms at 5 MB/s.
    "link": ({"bandwidth": "5e6"}, ("--pin", "layer_[01]=GPU:0", "--pin", "layer_[23]=GPU:1")),
    # In inference in one piece one of three stages works at a time.
    "bubble": ({"last": 2}, ("--microbatches", "1", "--inference")),
    # One device would take 37 ms and needs 3.5 MiB; the link makes every split slow.
    "memory": ({"bandwidth": "5e6", "memory": "2500KiB"}, ("--strategy", "auto")),
}


@pytest.fixture
def planned(run: Run, tmp_path: Path) -> Callable[..., str]:
    """Plan the stack; returns the name of the plan."""

    def planned(*arguments: str) -> str:
        code, out, err = run(STACK, "--batch-size", "256", "--time-limit", "20", "--dry-run", "--json", *arguments)
        assert code == 0, err
        (tmp_path / "plan.json").write_text(out)
        return "plan.json"

    return planned


@pytest.mark.parametrize("kind", CASES)
def test_the_true_bottleneck_is_named(run: Run, planned: Callable[..., str], tmp_path: Path, kind: str) -> None:
    machine, arguments = CASES[kind]
    text = SLOW_GPUS.format(**{"last": 1, "memory": "1GiB", "bandwidth": "1e13", **machine})
    (tmp_path / "slow.toml").write_text(text)
    strategy = () if "--strategy" in arguments else ("--strategy", "layer-split")
    plan = planned("--topology", "slow.toml", *strategy, *arguments)
    code, out, err = run("explain", plan, "--no-moves", "--json")
    assert (code, err) == (0, "")
    first, *_ = json.loads(out)["limits"]
    assert (first["kind"], first["share"] > 0.25) == (kind, True)
    assert first["layers"]
    assert bool(first["tensors"]) == (kind in ("link", "memory"))


def test_each_move_gains_what_is_said_in_a_fresh_process(run: Run, planned: Callable[..., str], tmp_path: Path) -> None:
    given = ("--devices", "GPU:0-1", "--hardware", "t4", "--strategy", "layer-split", "--microbatches", "4")
    plan = planned(*given, "--seed", "3")
    before = json.loads((tmp_path / plan).read_text())["predicted"]["step_seconds"]
    code, out, err = run("explain", plan, "--json")
    assert code == 0, err
    moves = json.loads(out)["moves"]
    assert len(moves) >= 2
    assert [move["gain"] for move in moves] == sorted((move["gain"] for move in moves), reverse=True)
    for move in moves:
        program, *arguments = shlex.split(move["command"])
        assert (program, arguments[0]) == ("partition", STACK)
        command = (sys.executable, "-m", "partitioner", *arguments, "--dry-run", "--json", "-q")
        again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        after = again["predicted"]["step_seconds"]
        assert after == pytest.approx(move["after"], rel=0.01)
        assert 1 - after / before == pytest.approx(move["gain"], abs=0.01)
        assert f"planning: {move['change']} ...\n" in err


def test_a_time_limit_is_carried_into_the_commands(run: Run, planned: Callable[..., str]) -> None:
    plan = planned("--devices", "GPU:0", "--hardware", "t4")
    code, out, err = run("explain", plan, STACK, "--time-limit", "7", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["moves"]
    assert all("--time-limit 7" in move["command"] for move in data["moves"])
    assert data["limits"][0]["kind"] == "compute"


def test_words_need_no_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes((GOLDEN / "cli_plan.json").read_bytes())
    code, out, err = run("explain", "plan.json", "--no-moves")
    assert (code, err) == (0, "")
    assert "\nwhat limits the step\n" in out
    assert out.endswith("\nnext moves\n  not asked for\n")


def test_a_model_that_is_gone_leaves_the_words_and_a_command(run: Run, tmp_path: Path) -> None:
    data = json.loads((GOLDEN / "cli_plan.json").read_text())
    data["model"]["source"] = "gone.py:build"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    code, out, err = run("explain", "plan.json")
    assert (code, err) == (0, "")
    expected = "next moves\n  not planned: there is no gone.py here\n     partition explain plan.json gone.py:build\n"
    assert out.endswith(expected)
    code, out, err = run("explain", "plan.json", "gone.py", "-q")
    assert (code, out) == (3, "")
    assert "gone.py" in err


def test_a_plan_made_in_python_names_no_model(run: Run, tmp_path: Path) -> None:
    data = json.loads((GOLDEN / "cli_plan.json").read_text())
    data["model"]["source"] = ""
    (tmp_path / "plan.json").write_text(json.dumps(data))
    code, out, _ = run("explain", "plan.json", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["not_planned"] == "not planned: the plan was made in Python, and names no file of its model"
    assert (said["command"], said["moves"]) == ("partition explain plan.json MODEL", [])


def test_another_model_is_refused(run: Run, planned: Callable[..., str]) -> None:
    plan = planned("--devices", "CPU:0")
    code, out, err = run("explain", plan, f"{STACK}:build_model(depth=2)", "-q")
    assert (code, out) == (2, "")
    assert "error: the plan is for another model\n" in err


def test_costs_that_were_measured_are_not_measured_again(run: Run, planned: Callable[..., str], tmp_path: Path) -> None:
    plan = planned("--devices", "CPU:0")
    data = json.loads((tmp_path / plan).read_text())
    data["request"]["costs"] = "measured"
    (tmp_path / plan).write_text(json.dumps(data))
    code, out, _ = run("explain", plan, "-q")
    assert code == 0
    assert "not planned: the costs of the plan were measured, and measuring them again gives others" in out
    assert "--costs costs.json" in out


def test_a_cost_graph_is_refused(run: Run, file: Callable[..., str]) -> None:
    assert run("graph", file(), "--time-limit", "300", "-q")[0] == 0
    code, out, err = run("explain", "work_partitioned/plan.json")
    assert (code, out) == (2, "")
    assert "which has no model\n   help: partition check work_partitioned/plan.json" in err
