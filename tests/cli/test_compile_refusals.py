"""`partition MODEL`, what it refuses: the exit code, the offender and the way out, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import pytest

import partitioner
from tests.commands import MODELS, SMALL, TWO, Run

# Refusals that need no TensorFlow


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: the following arguments are required: MODEL\n   help: partition --help"),
        ([SMALL], "error: which devices? --devices is missing\n   help: e.g. --devices GPU:0,GPU:1"),
        ([SMALL, "--devcies", "CPU:0"], "error: unknown option --devcies\n   help: did you mean --devices?"),
        ([SMALL, "--dev", "CPU:0"], "error: unknown option --dev\n"),
        ([SMALL, *TWO, "other.py"], "error: unexpected argument 'other.py': one MODEL at a time"),
        ([SMALL, *TWO, "--batch-size", "0"], "--batch-size: '0' is not a whole number of at least 1"),
        ([SMALL, *TWO, "--batch-size", "many"], "--batch-size: 'many' is not a whole number"),
        ([SMALL, *TWO, "--time-limit", "nan"], "--time-limit: 'nan' is not a number of seconds above 0"),
        ([SMALL, *TWO, "--strategy", "both"], "(choose from 'auto', 'single', 'layer-split', 'mirrored', 'mixed')"),
        ([SMALL, *TWO, "--microbatches", "0"], "--microbatches: '0' is not a whole number of at least 1, nor auto"),
        ([SMALL, *TWO, "--microbatches", "-4"], "--microbatches: '-4' is not a whole number of at least 1, nor auto"),
        ([SMALL, *TWO, "--microbatches", "2.5"], "--microbatches: '2.5' is not a whole number"),
        ([SMALL, *TWO, "--microbatches", "many"], "--microbatches: 'many' is not a whole number"),
        (
            [SMALL, *TWO, "--schedule", "2f2b"],
            "'2f2b' (choose from 'auto', 'sequential', 'gpipe', '1f1b', 'zb-h1', 'zb-h2', 'zb-v', 'interleaved')",
        ),
        ([SMALL, *TWO, "--recompute", "some"], "'some' (choose from 'auto', 'none', 'all')"),
        ([SMALL, *TWO, "-q", "-v"], "-v/--verbose: not allowed with argument -q/--quiet"),
        ([SMALL, *TWO, "--input-shape", "4,x"], "--input-shape '4,x': expected sizes of at least 1"),
        ([SMALL, *TWO, "--input-shape", "4,0"], "--input-shape '4,0': expected sizes of at least 1"),
        ([SMALL, *TWO, "--input-shape", "4", "--input-shape", "5"], "names the only input twice"),
        ([SMALL, *TWO, "--pin", "first"], "--pin 'first': expected REGEX=DEVICE"),
        (
            [SMALL, *TWO, "--pin", "a=CPU:0", "--pin", "a=CPU:1"],
            "error: --pin puts 'a' on CPU:0 and on CPU:1",
        ),
        ([SMALL, *TWO, "--forbid", "first"], "--forbid 'first': expected REGEX=DEVICE"),
        ([SMALL, *TWO, "--hardware", "a100-80bg"], "unknown hardware 'a100-80bg'; did you mean a100-80gb"),
        ([SMALL, *TWO, "--link", "nvlnk3"], "unknown link 'nvlnk3'; did you mean nvlink3"),
        ([SMALL, *TWO, "--costs", "mesured"], "--costs: there is no file 'mesured'\n   help: analytic, measured, or"),
        ([SMALL, *TWO, "--memory-limit", "8Gigs"], "'8Gigs' is not a memory size\n   help: e.g. 8GiB"),
        ([SMALL, *TWO, "--dry-run", "--svg", "x.svg"], "--dry-run writes no file, but --svg asks for one"),
        ([SMALL, *TWO, "--svg", "no/x.svg"], "--svg: there is no directory 'no'\n   help: mkdir -p no"),
        (["plan.json"], "error: cannot read 'plan.json': No such file or directory"),
        ([SMALL, *TWO, "--objective", "speed"], "'speed' (choose from 'throughput', 'memory')"),
        ([SMALL, *TWO, "--max-staleness", "-1"], "--max-staleness: '-1' is not a whole number of at least 0"),
        ([SMALL, *TWO, "--max-staleness", "2"], "help: --updates async --max-staleness 2, or leave it out"),
        ([SMALL, *TWO, "--updates", "async"], "asynchronous updates by how many replicas?"),
        (["shwo", "plan.json"], "help: a sub-command is the first word: partition show ..."),
        (["-q", "show", "plan.json"], "help: a sub-command is the first word: partition show ..."),
        (
            [SMALL, "--devices", "GPU:0-3", "--strategy", "mixed", "--replicas", "3"],
            "4 devices cannot be cut into 3 replicas",
        ),
        ([SMALL, *TWO, "--strategy", "layer-split", "--replicas", "2"], "the strategy layer-split has one replica"),
        ([SMALL, *TWO, "--strategy", "mirrored", "--batch-size", "1"], "2 replicas of a batch of 1 rows"),
        ([SMALL, *TWO, "--replicas", "0"], "'0' is not a whole number of at least 1, nor auto"),
        ([SMALL, *TWO, "--replicas", "2,x"], "'x' is not a whole number of at least 1"),
        ([SMALL, *TWO, "--replicas", "2,1"], "replicas 2,1 are on 3 devices, and 2 are given"),
        (
            [SMALL, "--devices", "GPU:0-2", "--strategy", "mixed", "--replicas", "2,1", "--updates", "async"],
            "asynchronous replicas update by themselves, so that they cannot share devices",
        ),
    ],
)
def test_wrong_usage_is_told_before_tensorflow_loads(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err
    assert not list(tmp_path.iterdir())


def test_everything_wrong_with_the_devices_is_told_at_once(run: Run) -> None:
    code, _, err = run(SMALL, "--devices", "CPU:0,XPU:1,GPU:3-1,gpu,CPU:0")
    assert code == 2
    assert err.splitlines() == [
        "error: 4 of the devices are wrong",
        "   |  'XPU:1' has the device type 'XPU'; expected CPU or GPU",
        "   |  'GPU:3-1' is an empty range: 1 comes before 3",
        "   |  'gpu' is not a device; expected TYPE:INDEX, e.g. GPU:0 or CPU:1",
        "   |  CPU:0 is listed twice",
        "   help: e.g. --devices GPU:0,GPU:1 or GPU:0-3 or CPU:0,CPU:1",
    ]


def test_someone_elses_directory_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("text")
    code, _, err = run(SMALL, *TWO, "-o", "mine")
    assert code == 2
    assert "'mine' holds files that partition did not write\n   |  among them: thesis.tex" in err
    code, _, err = run(SMALL, *TWO, "-o", "mine/thesis.tex")
    assert code == 2
    assert "the output 'mine/thesis.tex' is a file" in err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", '{"schema": "partition-plan/1"}', "x.json is a plan (schema partition-plan/1)\n   help: partition"),
        ("x.json", '{"nodes": [], "edges": []}', "is not a model, which is a .py or a .keras file\n   help: if it is"),
        ("x.json", "no JSON", "help: if it is a cost graph: partition graph x.json"),
        ("x.txt", "1 -- op -- size=1", "help: if it is a cost graph: partition graph x.txt"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_is_refused_with_its_sub_command(
    run: Run, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    code, out, err = run(name, *TWO)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err


def test_a_file_named_like_a_sub_command_is_a_model_by_its_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "graph").write_text("model = None\n")
    code, _, err = run("./graph", *TWO, "-q")
    assert code == 3
    assert "graph" in err.splitlines()[0]
    code, _, err = run("graph", *TWO)
    assert code == 2
    assert "required: FILE\n   help: partition graph --help" in err


def test_what_cannot_be_written_exits_8(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "small_partitioned/plan.json")

    monkeypatch.setattr(partitioner.Plan, "save", full)
    code, out, err = run(SMALL, *TWO, "-q", "--time-limit", "5", "--no-verify")
    assert (code, out) == (8, "")
    assert err.startswith("error: cannot write small_partitioned/plan.json: No space left on device\n")


# Refusals of models


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smal.py", "error: no such file: "),
        ("no_model.py", "holds no model: no keras.Model and none of build_model()"),
        ("several.py", "holds 2 models, expected a single model or a name"),
        ("arguments.py", "its signature: build_model(width: int)"),
        ("raises.py", "   |  RuntimeError: the weights are at home"),
        ("small.py:build_modle", "defines no 'build_modle'"),
        ("subclassed.py", "e.g. --input-shape 28,28,1, or set example_inputs in the file"),
    ],
)
def test_a_file_without_a_model_to_plan(run: Run, tmp_path: Path, model: str, said: str) -> None:
    code, out, err = run(str(MODELS / model), *TWO, "-q")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert said in err
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_traced_names_its_line(run: Run) -> None:
    code, _, err = run(f"{MODELS}/untraceable.py", *TWO, "-q", "--input-shape", "4")
    assert code == 3
    assert f"--> {MODELS / 'untraceable.py'}:14 (call)" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--loss", "mean_sqared"], "Keras knows no loss 'mean_sqared'"),
        (["--optimizer", "addam"], "Keras knows no optimizer 'addam'"),
        (["--pin", "third=CPU:0"], "third=CPU:0: matches no layer and no op"),
        (["--pin", "first=CPU:7"], "CPU:7 is not among the devices (CPU:0, CPU:1)"),
        (["--pin", "(=CPU:0"], "not a regular expression"),
        (["--forbid", "third=CPU:0"], "third=CPU:0: matches no layer and no op; near: first"),
        (["--colocate", "third"], "colocate third: matches no layer and no op"),
    ],
)
def test_options_that_the_model_refuses(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run(SMALL, *TWO, "--dry-run", "-q", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_requirements_that_contradict_each_other_exit_4(run: Run) -> None:
    asked = ("--pin", "first=CPU:0", "--pin", "second=CPU:1", "--forbid", "first=CPU:0", "--forbid", "first=CPU:1")
    code, out, err = run(SMALL, *TWO, "--dry-run", "-q", *asked)
    assert (code, out) == (4, "")
    assert "error: no placement of the model can meet 1 of the requirements together" in err
    assert "forbid first=CPU:0,CPU:1: first may be on no device only" in err


def test_a_model_that_fits_nowhere_exits_4_with_the_numbers(run: Run) -> None:
    code, out, err = run(SMALL, *TWO, "--dry-run", "-q", "--memory-limit", "1KiB")
    assert (code, out) == (4, "")
    assert err.startswith("error: the model does not fit on the given devices\n")
    assert re.search(r"^  --> .*:\d+ \(.*\)$", err, re.MULTILINE)
    assert re.search(r"^   \|  needs .*\d [KMG]iB: parameters \d", err, re.MULTILINE)
    assert re.search(r"^   \|  have .*\d [KMG]iB: CPU:0 \d.*, CPU:1 \d", err, re.MULTILINE)
    assert "   help: " in err


def test_a_keras_file_with_code_is_loaded_only_if_it_is_trusted(run: Run) -> None:
    """The code of a Lambda layer is bytecode in the file: loading would run it."""
    layers = [keras.Input((4,)), keras.layers.Lambda(lambda x: 2 * x, name="doubled"), keras.layers.Dense(2)]
    keras.Sequential(layers).save("code.keras")
    code, out, err = run("code.keras", *TWO, "--dry-run", "-q")
    assert (code, out) == (3, "")
    assert err == (
        "error: code.keras holds Python code, in doubled, and loading would run it\n  --> code.keras\n"
        "   help: if you trust the file: --unsafe\n"
    )
    code, out, _ = run("code.keras", *TWO, "--dry-run", "-q", "--unsafe", "--time-limit", "5")
    assert code == 0
    assert "10 parameters" in out
