"""`partition bench PLAN MODEL`: a model placed by a saved plan and timed beside simpler ways."""

from __future__ import annotations

import json

import pytest

from tests.commands import SMALL, Run

PLAN = "small_partitioned"
BRIEF = ("--rounds", "2", "--steps", "1")


@pytest.fixture
def planned(run: Run) -> Run:
    devices = ("--devices", "GPU:0,GPU:1", "--strategy", "layer-split", "--pin", "first=GPU:0", "--pin", "second=GPU:1")
    assert run(SMALL, *devices, "--time-limit", "5", "-q", "--no-verify")[0] == 0
    return run


def test_json_has_the_schema_and_text_names_who_stands_in(planned: Run) -> None:
    code, out, err = planned("bench", PLAN, SMALL, *BRIEF, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["schema"] == "partition-bench/1"
    assert [(one["name"], len(one["round_seconds"])) for one in told["contenders"]] == [
        ("the plan", 2),
        ("one device", 2),
        ("MirroredStrategy", 2),
    ]
    assert len(told["cores"]) == 2
    assert [peak["measured_bytes"] for peak in told["memory"]] == [None, None]
    assert [line.split("] ")[1] for line in err.splitlines() if "] " in line][-2:] == [
        "warming up MirroredStrategy ...",
        "2 rounds ...",
    ]
    code, out, err = planned("bench", f"{PLAN}/plan.json", SMALL, *BRIEF, "--alone", "-q")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("standing in: CPU:1 for GPU:0, CPU:2 for GPU:1; the times are theirs")
    assert "one device" not in out


def test_a_plan_of_another_model(planned: Run) -> None:
    code, out, err = planned("bench", PLAN, f"{SMALL}:build_model(width=16)", "-q")
    assert (code, out) == (2, "")
    assert "error: the plan is for another model" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.json"], "required: MODEL\n   help: partition bench --help"),
        ([SMALL, SMALL], "is a model, which `partition bench` does not read"),
        (["x.json", SMALL, "--rounds", "0"], "--rounds: '0' is not a whole number of at least 1"),
        (["gone", SMALL], "error: cannot read 'gone': No such file or directory"),
    ],
)
def test_wrong_usage_is_refused_before_tensorflow_loads(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run("bench", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err
