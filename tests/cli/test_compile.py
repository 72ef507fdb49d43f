"""`partition MODEL`, what it gives: the report, plan.json, the files, and what each option changes in them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import pytest

import partitioner
from partitioner import compile
from partitioner.errors import UsageError
from partitioner.options import AsyncUpdates, Request
from tests.commands import GOLDEN, MODELS, SMALL, TWO, Run

QUICK = ("--time-limit", "5", "-q")


def test_default_report(run: Run) -> None:
    """By hand: 160 + 108 B of parameters; 32 rows x 8 floats = 1 KiB go, their gradient back."""
    code, out, err = run(
        SMALL, *TWO, "--pin", "first=CPU:0", "--pin", "second=CPU:1", "--strategy", "layer-split",
        "--memory-limit", "1GiB", "--hardware", "cpu-socket", "--time-limit", "20",
    )  # fmt: skip
    assert code == 0
    assert _masked(out) == (GOLDEN / "cli_report.txt").read_text(encoding="utf-8")
    steps = [line.split("] ")[1] for line in err.splitlines()]
    assert steps == [
        "loading TensorFlow ...",
        f"loading {SMALL} ...",
        "tracing and planning ...",
        "placing ...",
        "verifying against the unplaced model ...",
        "measuring steps ...",
        "writing small_partitioned ...",
    ]


def test_json_is_the_plan_alone_and_the_same_for_the_same_seed(run: Run, tmp_path: Path) -> None:
    arguments = (SMALL, *TWO, "-q", "--strategy", "layer-split", "--json", "--seed", "7", "--no-verify")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert out == (tmp_path / "small_partitioned/plan.json").read_text(encoding="utf-8")
    plan = json.loads(out)
    assert list(plan) == sorted(plan)
    for part, keys in CONTRACT.items():
        assert keys <= set(_first(plan[part]) if part else plan)
    assert plan["schema"] == "partition-plan/1"
    assert plan["model"]["num_parameters"] == 67
    assert plan["verification"] is None
    assert set(plan["placement"].values()) == {d["name"] for d in plan["devices"]} == {_cpu(0), _cpu(1)}

    _, again, _ = run(*arguments)  # into its own directory, which it may overwrite
    for text in (plan, other := json.loads(again)):
        text["solver"].pop("seconds")
    assert other == plan


CONTRACT = {
    "": {
        "model", "devices", "strategy", "num_replicas", "num_stages", "num_microbatches", "schedule",
        "updates", "stages", "placement", "predicted", "baselines", "solver", "uncosted_ops", "verification",
        "versions",
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


def test_a_plan_made_before_is_taken_and_the_command_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = (SMALL, "--devices", "GPU:0,GPU:1", "--hardware", "t4", "--dry-run", "--json")
    says = "took the plan that was made before; --no-cache searches anew"
    first, again, anew = run(*line), run(*line), run(*line, "--no-cache")
    assert [says in err for _, _, err in (first, again, anew)] == [False, True, False]
    assert json.loads(again[1]) == json.loads(first[1])


def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path) -> None:
    code, out, err = run(SMALL, *TWO, *QUICK, "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith(f"small ({SMALL})\n")
    assert "\nfiles\n" not in out
    assert not list(tmp_path.iterdir())


def test_the_files_and_the_same_report_from_plan_json(run: Run, tmp_path: Path) -> None:
    written = ("-o", "out", "--dot", "a.dot", "--svg", "a.svg")
    code, out, _ = run(SMALL, *TWO, *QUICK, "--strategy", "layer-split", *written)
    assert code == 0
    report, files = re.split(r"\n  files +", out)
    written_files = files.replace(",", "").split()
    names = ("plan.json", "placement.dot", "timeline.json", "report.html", "placed_model")
    assert written_files == [*(f"out/{name}" for name in names), "a.dot", "a.svg"]
    assert all((tmp_path / name).exists() for name in written_files)
    assert (tmp_path / "a.dot").read_text() == (tmp_path / "out/placement.dot").read_text()
    assert "<svg" in (tmp_path / "a.svg").read_text()

    code, again, err = run("show", "out/plan.json", "--dot", "b.dot")
    assert (code, err) == (0, "")
    assert re.split(r"\n  files +", again) == [report, "b.dot\n"]
    assert (tmp_path / "b.dot").read_text() == (tmp_path / "a.dot").read_text()

    loaded = partitioner.load(tmp_path / "out")
    assert loaded.count_params() == 67


def test_absent_gpus_are_assumed_and_stood_in_for(run: Run) -> None:
    arguments = (SMALL, "--devices", "GPU:0,GPU:1", "--strategy", "layer-split", *QUICK)
    code, out, _ = run(*arguments)
    assert code == 0
    assert "the estimates rest on assumed hardware and link figures" in out
    assert "not run; --verify runs the placed model beside the unplaced one" in out
    assert "small_partitioned/placed_model" in out
    loud = [argument for argument in arguments if argument != "-q"]
    code, out, _ = run(*loud, "--verify", "--hardware", "h100-sxm", "--link", "nvlink4", "--verbose")
    assert code == 0
    assert "CPU:1 standing in for GPU:0, CPU:2 standing in for GPU:1" in " ".join(out.split())
    assert "the estimates rest on catalogue hardware and link figures" in out


@pytest.mark.usefixtures("verification_fails")
def test_a_failed_verification_exits_6_and_writes_no_model(run: Run, tmp_path: Path) -> None:
    code, out, err = run(SMALL, *TWO, *QUICK)
    assert code == 6
    assert out.startswith("small (")
    assert err.startswith("error: the placed model failed its verification; it was not written\n")
    assert "misplaced ops: 1" in err
    assert {p.name for p in (tmp_path / "small_partitioned").iterdir()} == {
        "placement.dot", "plan.json", "report.html", "timeline.json",
    }  # fmt: skip


def test_a_bug_of_ours_exits_1_with_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("op")

    monkeypatch.setattr(compile, "compile_plan", broken)
    code, out, err = run(SMALL, *TWO, "-q")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert f"error: a bug in partition {partitioner.__version__}: KeyError: 'op'" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("auto", "auto", "auto")),
        (["--microbatches", "auto", "--schedule", "auto", "--recompute", "auto"], ("auto", "auto", "auto")),
        (["--microbatches", "8", "--schedule", "1f1b", "--recompute", "all"], (8, "1f1b", "all")),
        (["--microbatches", "1", "--schedule", "sequential", "--recompute", "none"], (1, "sequential", "none")),
    ],
)
def test_how_the_batch_passes_is_asked_of_the_planner(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: tuple[int | str, str, str]
) -> None:
    asked: list[Request] = []

    def recording(_: object, request: Request, **__: object) -> None:
        asked.append(request)
        raise UsageError("enough seen")

    monkeypatch.setattr(compile, "compile_plan", recording)
    code, _, err = run(SMALL, *TWO, *QUICK, *arguments)
    assert (code, err) == (2, "error: enough seen\n")
    (request,) = asked
    assert (request.microbatches, request.parallelism.schedule, request.parallelism.recompute) == expected
    assert request.step.source == SMALL


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["--updates", "async"], AsyncUpdates()),
        (["--updates", "async", "--max-staleness", "0"], AsyncUpdates(max_staleness=0)),
    ],
)
def test_asynchronous_updates_are_one_value(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: AsyncUpdates | None
) -> None:
    asked: list[Request] = []

    def recording(_: object, request: Request, **__: object) -> None:
        asked.append(request)
        raise UsageError("enough seen")

    monkeypatch.setattr(compile, "compile_plan", recording)
    assert run(SMALL, *TWO, *QUICK, "--strategy", "mirrored", *arguments)[0] == 2
    assert asked[0].parallelism.asynchronous == expected


def test_measured_costs_are_written_and_read_again(run: Run, tmp_path: Path) -> None:
    plan = (SMALL, *TWO, *QUICK, "--strategy", "layer-split", "--no-verify", "--json")
    code, out, _ = run(*plan, "--costs", "measured")
    assert code == 0
    assert json.loads(out)["costs"]["source"] == "measured"
    assert (tmp_path / "small_partitioned/costs.json").is_file()
    code, out, _ = run(*plan, "--costs", "small_partitioned/costs.json")
    assert code == 0
    assert json.loads(out)["costs"]["source"] == "small_partitioned/costs.json"


@pytest.mark.filterwarnings("ignore:the user's own warning")
def test_what_the_users_file_writes_goes_to_stderr(run: Run) -> None:
    code, out, err = run(str(MODELS / "noisy.py"), *TWO, *QUICK, "--json", "--dry-run")
    assert code == 0
    assert json.loads(out)["model"]["name"] == "small"
    assert err == "printed\ntold\nwritten below Python\nby a child process\n"


# Models and options


def test_a_literal_call_an_objective_and_options_for_an_uncompiled_model(run: Run) -> None:
    model = _plan(run, f"{SMALL}:build_model(width=16)", "--loss", "mae", "--optimizer", "sgd")["model"]
    assert model["num_parameters"] == 4 * 16 + 16 + 16 * 3 + 3
    assert (model["loss_origin"], model["optimizer_origin"]) == ("option", "option")
    assert model["optimizer"] == "SGD"
    model = _plan(run, SMALL)["model"]
    assert (model["loss_origin"], model["optimizer_origin"]) == ("assumed", "assumed")


def test_a_subclassed_model_with_its_input_shape(run: Run) -> None:
    plan = _plan(run, str(MODELS / "subclassed.py"), "--input-shape", "4", "--batch-size", "8")
    assert plan["model"]["num_parameters"] == 67
    assert plan["model"]["batch_size"] == 8
    assert plan["model"]["input_shapes"] == {"": [4]}


def test_a_keras_file_for_inference(run: Run, tmp_path: Path) -> None:
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(tmp_path / "kept.keras")
    plan = _plan(run, "kept.keras", "--inference", "--objective", "memory")
    assert plan["model"]["num_parameters"] == 10
    assert (plan["model"]["training"], plan["model"]["loss"]) == (False, "")
    assert plan["objective"] == "memory"


def test_a_model_that_a_file_builds_gets_no_values_to_be_planned(run: Run, tmp_path: Path) -> None:
    """A dry run never calls its initializers; placing does."""
    (tmp_path / "kept.py").write_text(
        "import keras\n\n"
        "def first(shape, dtype=None):\n"
        "    print('values are made')\n"
        "    return keras.ops.ones(shape, dtype)\n\n"
        "def build_model():\n"
        "    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer=first)])\n",
        encoding="utf-8",
    )
    arguments = ("kept.py", *TWO, "--strategy", "single", *QUICK)
    code, _, err = run(*arguments, "--dry-run")
    assert (code, err.count("values are made")) == (0, 0)
    code, _, err = run(*arguments, "--no-verify")
    assert (code, err.count("values are made")) == (0, 1)


def test_memory_as_objective_splits_the_parameters(run: Run) -> None:
    plan = _plan(run, SMALL, "--objective", "memory", "--strategy", "layer-split", "--schedule", "1f1b")
    held = Counter[str]()  # a device may have a stage without parameters besides
    for stage in plan["stages"]:
        held[stage["device"]] += stage["parameter_bytes"]
    assert sorted(held.values()) == [108, 160]


def test_replicas_that_share_a_device(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(
        SMALL, "--devices", "CPU:0-2", *QUICK, "--strategy", "mixed", "--replicas", "2,1", "--dot", "shared.dot"
    )  # fmt: skip
    assert code == 0
    assert "2 replicas that share CPU:2, 2 stages" in out
    assert "CPU:2 works for 2 replicas at a time" in " ".join(out.split())
    plan = partitioner.Plan.load(tmp_path / "small_partitioned/plan.json")
    shared = [stage for stage in plan.stages if stage.device == _cpu(2)]
    assert [plan.replicas_of(stage) for stage in shared] == [(0, 1)]
    assert plan.verification is not None
    assert plan.verification.passed
    assert "<b>CPU:2</b>, all replicas" in (tmp_path / "shared.dot").read_text(encoding="utf-8")
    code, again, _ = run("show", "small_partitioned/plan.json")
    assert code == 0
    assert "2 replicas that share CPU:2" in again


def test_one_strategy_one_device(run: Run) -> None:
    plan = _plan(run, SMALL, "--strategy", "single")
    assert (plan["strategy"], plan["num_stages"]) == ("single", 1)
    assert len(set(plan["placement"].values())) == 1


def test_more_devices_than_layers(run: Run) -> None:
    code, out, _ = run(SMALL, "--devices", "CPU:0-4", "--strategy", "layer-split", "--json", *QUICK)
    assert code == 0
    assert {d["name"] for d in json.loads(out)["devices"]} == {_cpu(index) for index in range(5)}


def test_a_transformer_encoder_is_placed_and_verified(run: Run) -> None:
    code, out, _ = run(str(MODELS / "encoder.py"), *TWO, *QUICK, "--strategy", "layer-split", "--json", "--verify")
    assert code == 0
    plan = json.loads(out)
    assert plan["verification"]["passed"]
    assert plan["verification"]["misplaced_ops"] == []
    assert plan["num_stages"] == 2


def test_resnet50(run: Run) -> None:
    plan = _plan(run, str(MODELS / "resnet50.py"), "--memory-limit", "CPU:0=4GiB,CPU:1=2GiB")
    # He et al. 2015 as Keras has it: https://keras.io/api/applications/ gives 25.6 M parameters.
    assert plan["model"]["num_parameters"] == 25_636_712
    assert [d["memory_bytes"] for d in plan["devices"]] == [4 * 2**30, 2 * 2**30]
    assert plan["solver"]["lower_bound"] <= plan["predicted"]["step_seconds"]


def _plan(run: Run, model: str, *arguments: str) -> dict:
    code, out, err = run(model, *TWO, *QUICK, "--dry-run", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _cpu(index: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:CPU:{index}"


def _masked(report: str) -> str:
    """The report without what the machine or TensorFlow's spelling of a step decides: times, ops, peaks."""
    text = report.replace(f"{MODELS}/", "")
    times = r"\d[\d.,]* (ns|us|ms|s)\b"
    ratios = r"\d[\d.]*x (faster|slower)|\bsame\b"
    differences = r"^( +(outputs|loss|gradients|weights after 5 steps|control: [\w ]+)) {2,}\d.*$"
    for pattern, mask in {
        r"(memory \(estimated peak against the limit\)\n)(?: .*\n)+": r"\1  MEMORY\n",
        r"(  bottleneck) .*\n(?: {16}.*\n)*": r"\1  LIMITS\n",  # where its lines end depends on its figures
        r"(largest relative difference) .*": r"\1 DIFFERENCES",
        times: "TIME",
        ratios: "RATIO",
        r"\d[\d.]* %": "SHARE",
        r"(optimal|feasible) in": "STATUS in",
        r"\d[\d,]* ops": "OPS ops",
        r"(first|second) +\d+ ": r"\1 OPS ",
        r"\d[\d.]* [KM]iB / ": "PEAK / ",
        r"(1\.0 GiB) +\d[\d.]* [KM]iB$": r"\1 PEAK",
        differences: r"\1 DIFFERENCES",
        "─+": "─",
        r"(?<=\S) {2,}": "  ",
    }.items():
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return text
