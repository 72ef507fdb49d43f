"""Each example keeps the promise of its first lines: it trains as a script, and `partition` plans it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = (
    "encoder",
    "mlp_784",
    "cnn_28x28",
    "cnn_32x32",
    "two_models",
    "data_parallel",
    "mixed_parallel",
    "sync_vs_async",
)

PLAN_ALL = """
import sys
sys.modules["sklearn"] = None  # importing it raises ImportError, as if it were not installed
from partitioner.cli import main
for path in sys.argv[1:]:
    code = main([path, "--devices", "CPU:0,CPU:1", "--dry-run", "-q", "--time-limit", "5"])
    assert code == 0, f"{path}: exit code {code}"
"""


def test_each_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, "digits"}


def test_partition_plans_each_without_scikit_learn(tmp_path: Path) -> None:
    paths = [str(EXAMPLES / f"{name}.py") for name in NAMES]
    command = (sys.executable, "-c", PLAN_ALL, *paths)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert re.search(rf"^{name} \(.*{name}\.py\)$", done.stdout, re.MULTILINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "epochs", "promises"),
    [
        (
            "mlp_784",
            2,
            [r"misplaced ops 0, gradients off by \d\.\de[-+]\d\d", r"test loss \d\.\d{4}, accuracy \d+\.\d%"],
        ),
        (
            "cnn_28x28",
            2,
            [
                r"layer-split on CPU:0 and CPU:1, 2 stages \(as asked for\)",
                r"test loss \d\.\d{4}, accuracy \d+\.\d%, \d+\.\d ms per step \(measured\)",
            ],
        ),
        (
            "cnn_32x32",
            1,
            [
                r"cut by hand: \d+\.\d% of 360 test digits recognised",
                r"cut by the planner: \d+\.\d% of 360 test digits recognised",
            ],
        ),
        (
            "two_models",
            1,
            [
                r"accuracy: largest difference between the two histories (0\.0e\+00|\d\.\de-0[6-9])",
                r"loss: largest difference between the two histories (0\.0e\+00|\d\.\de-0[6-9])",
                r"test loss \d\.\d{4}, accuracy \d+\.\d%",
            ],
        ),
        (
            "encoder",
            1,
            [r"\d stages, 4 microbatches, schedule \w+", r"test loss \d\.\d{4}, accuracy \d+\.\d%"],
        ),
        (
            "data_parallel",
            1,
            [
                r"mirrored on CPU:0 and CPU:1, 2 replicas \(as asked for\)",
                r"2 towers, all weights alike: True",
                r"test loss \d\.\d{4}, accuracy \d+\.\d%",
            ],
        ),
    ],
)
def test_each_trains_as_a_script(tmp_path: Path, name: str, epochs: int, promises: list[str]) -> None:
    pytest.importorskip("sklearn")
    command = (sys.executable, EXAMPLES / f"{name}.py", "--devices", "CPU:0,CPU:1", "--epochs", str(epochs))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for promise in promises:
        assert re.search(rf"^\s*{promise}$", done.stdout, re.MULTILINE), f"{promise}\n\n{done.stdout}"
    written = {"two_models.plan.json", "two_models.dot"} if name == "two_models" else set()
    assert {path.name for path in tmp_path.iterdir()} == written


def test_replicas_over_several_devices_train_like_one(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    command = (sys.executable, EXAMPLES / "mixed_parallel.py", "--epochs", "2")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"^ +\d+ +(\d+\.\d+) +(\d+\.\d+)$", done.stdout, re.MULTILINE)
    assert len(losses) == 2
    for found, expected in losses:
        assert float(found) == pytest.approx(float(expected), abs=2e-6)
    homes = dict(re.findall(r"^(\w+/kernel) +(CPU:\d, CPU:\d)$", done.stdout, re.MULTILINE))
    assert homes.keys() == {"hidden_1/kernel", "hidden_2/kernel", "scores/kernel"}
    assert set(homes.values()) == {"CPU:0, CPU:2", "CPU:1, CPU:3"}
    assert "all copies have the same bits: True" in done.stdout


def test_the_notebook_runs_and_says_what_it_said(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("pygraphviz")
    notebook = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 12
    kept = _printed(notebook)
    assert kept[-2:] == ["losses fall: True, test accuracy above 80 %: True\n", "passed: True, misplaced ops: 0\n"]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert _printed(notebook)[-2:] == kept[-2:]
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("<svg" in data.get("text/html", "") for data in shown)  # the plan
    assert any("stage 1" in data.get("image/svg+xml", "") for data in shown)


def test_the_notebook_is_small_and_names_no_machine() -> None:
    text = (EXAMPLES / "digits.ipynb").read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert not re.findall(r"/(?:home|root|tmp|usr|opt|work|Users)/\S*", text)


def _printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What its cells print on stdout."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]


@pytest.mark.slow
def test_the_sweep_prints_a_line_per_setting(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    command = (
        sys.executable, EXAMPLES / "cnn_28x28.py", "--sweep", "--devices", "CPU:0", "--epochs", "2"
    )  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d", line)]
    # One device, which is quickest, leaves one number of stages; then come batch sizes and precisions.
    expected = [("1", "64", "float32")]
    expected += [("1", size, "float32") for size in ("32", "128", "256")]
    expected += [("1", "64", precision) for precision in ("mixed_bfloat16", "mixed_float16")]
    assert [tuple(row[:3]) for row in rows] == expected
    assert all(float(row[4]) > 0 and row[6].endswith("%") for row in rows)


@pytest.mark.slow
def test_updates_of_both_kinds_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    command = (sys.executable, EXAMPLES / "sync_vs_async.py", "--seeds", "2", "--epochs", "2", "--svg", "losses.svg")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" *a?sync ", line)]
    # Of 1437 rows in batches of 64 the last has 29: all replicas have some of each of the 23.
    expected = [("sync", "2", "46"), ("async", "2", "92"), ("sync", "4", "46"), ("async", "4", "184")]
    assert [(kind, replicas, updates) for kind, replicas, _, updates, *_ in rows] == expected
    most = [int(row[5]) for row in rows]
    assert most[0] == most[2] == 0
    assert most[1] <= 8 and most[3] <= 16
    assert (tmp_path / "losses.svg").read_text().count("<polygon") == 4
