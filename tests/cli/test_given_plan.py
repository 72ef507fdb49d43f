"""`partition MODEL --plan PLAN`: the outputs of planning without planning; other devices; what contradicts the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import partitioner
from tests.commands import GOLDEN, MODELS, SMALL, TWO, Run

PLANNED = ("--strategy", "layer-split", "--time-limit", "5", "-q")


@pytest.fixture
def planned(run: Run) -> str:
    """A plan for two GPUs that are not here."""
    assert run(SMALL, "--devices", "GPU:0,GPU:1", *PLANNED, "-o", "planned", "--no-verify")[0] == 0
    return "planned"


def test_a_plan_is_placed_verified_and_written_like_one_made_now(run: Run, planned: str, tmp_path: Path) -> None:
    code, out, _ = run(SMALL, "--plan", planned, "--retarget", "GPU:0=CPU:1,GPU:1=CPU:0", "-o", "here", "-q")
    assert code == 0
    assert "every one of" in out and "ran where it was planned" in out
    assert "other devices than planned for: GPU:0 is CPU:1 now, GPU:1 is CPU:0 now" in " ".join(out.split())
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "plan.json", "placement.dot", "timeline.json", "report.html", "placed_model",
    }  # fmt: skip
    here, there = (partitioner.Plan.load(tmp_path / name / "plan.json") for name in ("here", planned))
    assert here.verification is not None and here.verification.passed
    assert [name[-5:] for name in there.used_devices] == [
        {"CPU:1": "GPU:0", "CPU:0": "GPU:1"}[name[-5:]] for name in here.used_devices
    ]
    assert partitioner.load(tmp_path / "here").count_params() == 67


def test_a_dry_run_says_whether_the_plan_is_for_the_model(run: Run, planned: str, tmp_path: Path) -> None:
    code, out, _ = run(SMALL, "--plan", f"{planned}/plan.json", "--dry-run", "--json", "-q")
    assert code == 0
    assert json.loads(out)["placement"] == json.loads((tmp_path / planned / "plan.json").read_text())["placement"]
    code, out, err = run(f"{MODELS}/stack.py", "--plan", planned, "--dry-run", "-q")
    assert (code, out) == (2, "")
    assert err.startswith("error: the plan is for another model\n   |  plan:  small, fingerprint ")
    assert "   |  model: " in err and "help: plan this model anew" in err
    assert [path.name for path in tmp_path.iterdir()] == [planned]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "0", "--pin", "a=CPU:0"], "error: --seed, --pin say how to plan, and --plan gives a plan\n"),
        (["--strategy=auto"], "error: --strategy says how to plan, and --plan gives a plan\n"),
        (["--batch-size", "32"], "error: --batch-size says how to plan"),
        (["--inference"], "error: --inference says how to plan"),
        (
            ["--devices", "CPU:0,CPU:2"],
            "error: --devices and the devices of the plan differ\n   |  in the plan alone: CPU:1\n"
            "   |  in --devices alone: CPU:2\n   help: leave --devices out; to run the plan on other devices:",
        ),
        (["--retarget", "GPU:3=CPU:0"], "error: the plan has no GPU:3\n   |  devices of the plan: CPU:0, CPU:1"),
        (["--retarget", "CPU:3,CPU:4"], "help: e.g. --retarget CPU:0=CPU:3,CPU:1=CPU:4"),
        (["--retarget", "CPU:3"], "help: e.g. --retarget CPU:0=CPU:0"),
        (["--retarget", "CPU:0=CPU:3,CPU:0=CPU:4"], "error: --retarget names CPU:0 twice"),
        (["--retarget", "CPU:0=CPU:3", "--devices", "CPU:0,CPU:1"], "   |  in the plan alone: CPU:3\n"),
    ],
)
def test_what_contradicts_the_plan_is_refused_before_tensorflow_loads(
    run: Run, arguments: list[str], said: str, tmp_path: Path
) -> None:
    code, out, err = run(SMALL, "--plan", str(GOLDEN / "cli_plan.json"), *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err
    assert not list(tmp_path.iterdir())


def test_a_plan_above_the_limit_is_refused_with_the_peaks(run: Run) -> None:
    code, _, err = run(SMALL, "--plan", str(GOLDEN / "cli_plan.json"), "--memory-limit", "1KiB")
    assert code == 4
    assert "error: the plan does not fit on CPU:0, CPU:1\n   |  CPU:0: predicted peak " in err


def test_a_plan_of_another_version_says_which(run: Run, tmp_path: Path) -> None:
    text = (GOLDEN / "cli_plan.json").read_text()
    (tmp_path / "new.json").write_text(text.replace("partition-plan/1", "partition-plan/2"))
    code, _, err = run(SMALL, "--plan", "new.json")
    assert code == 2
    assert "schema is 'partition-plan/2', this version reads 'partition-plan/1'" in err
    assert "help: plan anew, or use the version of partition that wrote it" in err


def test_retarget_is_of_a_plan(run: Run) -> None:
    code, _, err = run(SMALL, *TWO, "--retarget", "CPU:0=CPU:1")
    assert (code, err.splitlines()[0]) == (2, "error: --retarget is of a plan that was made before, and none is given")
