"""Documents and command lines changed at random end with a result or an error for their reader, quickly and whole.

`python -m tests.benchmarks.fuzz` runs more of them; what it found has a test of its own below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fuzzing import FORMATS, OLD_PLAN, WORKLOAD, outcome_of
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.cli.main import main
from tests.commands import GOLDEN, SMALL, TWO, Run

PLAN = json.loads((GOLDEN / "cli_plan.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "count"), [(kind, 4 if kind == "graph" else 25) for kind in FORMATS])
def test_a_changed_input_is_a_result_or_an_error(kind: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, 2**32))
    def each(seed: int) -> None:
        outcome = outcome_of(kind, seed)
        assert not outcome.failure, f"seed {seed}: {outcome.failure}\n{outcome.text}"

    each()


# Found by fuzzing


@pytest.mark.parametrize("command", ["show", "graph"])
def test_deep_nesting_is_no_bug_of_ours(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    code, _, err = run(command, "a.json")
    assert code in (2, 3)
    assert err.startswith("error: a.json is not")


def test_deep_nesting_in_a_topology(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("devices = " + "[" * 100_000)
    code, _, err = run(SMALL, "--topology", "a.toml")
    assert (code, err.splitlines()[0]) == (2, "error: not TOML: it is nested too deeply")


def test_a_file_name_that_is_too_long(run: Run) -> None:
    code, _, err = run("show", "x" * 5000)
    assert code == 2
    assert "File name too long" in err and "Traceback" not in err and len(err) < 500


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("GPU:0-99999999", "'GPU:0-99999999' is a range of 100,000,000 devices; at most 4,096"),
        ("GPU:" + "9" * 5000, "is not a device"),
    ],
)
def test_no_list_of_millions_of_devices(run: Run, devices: str, said: str) -> None:
    code, _, err = run(SMALL, "--devices", devices)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"nodes": [{**node, "size": 1e40} for node in WORKLOAD["nodes"]]},
            "have 6e+40 bytes together; expected at most",
        ),
        (
            {"nodes": [{**node, "cpuLatency": 1e308} for node in WORKLOAD["nodes"]]},
            "there is a cost of 1e+308; expected",
        ),
        ({"maxCPUs": 2**64}, "the file is for 18446744073709551616 CPUs; expected 0 to 4096"),
        ({"edges": [{**edge, "size": "8"} for edge in WORKLOAD["edges"]]}, "has size '8'; expected a number"),
        ({"edges": [{**edge, "size": -8.0} for edge in WORKLOAD["edges"]]}, "has the size -8.0; expected a number"),
    ],
)
def test_figures_of_a_cost_graph_that_mean_nothing(
    run: Run, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    (tmp_path / "work.json").write_text(json.dumps({**WORKLOAD, **changed}))
    code, _, err = run("graph", "work.json")
    assert code == 3
    assert said in err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_replicas": 2**62}, "the plan has 4611686018427387904 replicas"),
        ({"edges": [{"source": "a", "target": "first", "size_bytes": 1}]}, "names the unknown layer 'a'"),
        ({"verification": PLAN["verification"] and {**PLAN["verification"], "ran_on": {"a": "b"}}}, "is not a device"),
        ({"stages": []}, "the plan lists no stage"),
        ({"num_microbatches": -1}, "the plan has -1 microbatches"),
        ({"layers": [PLAN["layers"][0], *PLAN["layers"]]}, "two layers of the plan share a name"),
        ({"stages": [{**PLAN["stages"][0], "replica": 7}]}, "of replica 7 is none of the plan's"),
    ],
)
def test_a_plan_that_names_what_it_does_not_have(run: Run, tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, **changed}))
    code, _, err = run("show", "plan.json")
    assert code == 2
    assert err.startswith("error: plan.json is not a plan: ")
    assert said in err


def test_a_loss_on_a_device_without_a_stage_is_drawn(run: Run, tmp_path: Path) -> None:
    """Its stage was looked for among none."""
    layers = [*PLAN["layers"][:-1], {**PLAN["layers"][-1], "device": "/job:localhost/replica:0/task:0/device:CPU:7"}]
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "layers": layers}))
    code, _, err = run("show", "plan.json", "--dot", "a.dot", "--level", "op")
    assert (code, err) == (0, "")


def test_a_stage_beside_a_layer_without_a_stage_is_drawn(run: Run, tmp_path: Path) -> None:
    """The device of the layer's stage was looked for."""
    layers = [{**PLAN["layers"][0], "device": "/job:localhost/replica:0/task:0/device:CPU:7"}, *PLAN["layers"][1:]]
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "layers": layers}))
    code, _, err = run("show", "plan.json", "--dot", "a.dot", "--level", "layer", "--stage", "0")
    assert (code, err) == (0, "")


def test_an_old_plan_of_a_cost_graph_without_ids(run: Run, tmp_path: Path) -> None:
    plan = json.loads(OLD_PLAN.read_text(encoding="utf-8"))
    for value in (None, {}):
        broken = json.loads(json.dumps(plan))
        for layer in broken["layers"]:
            layer["name"] = value
        (tmp_path / "plan.json").write_text(json.dumps(broken))
        code, _, err = run("show", "plan.json")
        assert code == 2
        assert err.startswith("error: plan.json is no")


@pytest.mark.parametrize("size", ["9" * 400, "9" * 40 + "GiB", "1e9", "1iB"])
def test_a_memory_size_that_is_none(run: Run, size: str) -> None:
    code, _, err = run(SMALL, *TWO, "--memory-limit", size)
    assert code == 2
    assert "is not a memory size" in err


def test_what_the_system_refuses_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([SMALL, *TWO, "-o", "x" * 300]) == 2
    assert "error: cannot use xxx" in capsys.readouterr().err
