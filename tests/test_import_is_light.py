"""`import partitioner`, `--help`, misuse and a plan shown again load no TensorFlow, Keras or OR-Tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"

SCRIPT = """
import contextlib, io, sys
import partitioner
from partitioner.cli import main

with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    try:
        code = main(sys.argv[1:])
    except SystemExit as stop:  # argparse's --help and --version
        code = stop.code
heavy = {"tensorflow", "keras", "ortools"} & set(sys.modules)
print(code, sorted(heavy), len(out.getvalue()) > 0, len(err.getvalue()) > 0)
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "0 [] True False"),
        (["--help-all"], "0 [] True False"),
        (["graph", "--help"], "0 [] True False"),
        (["worker", "--help"], "0 [] True False"),
        (["--version"], "0 [] True False"),
        (["model.py", "--devices", "XPU:0"], "2 [] False True"),
        (["model.py", "--devices", "GPU:0", "--hardware", "a1000"], "2 [] False True"),
        (["model.py", "--topology", "dgx-h10"], "2 [] False True"),
        (["plan.json", "--devices", "GPU:0"], "2 [] False True"),
        (["hardware"], "0 [] True False"),
        (["diff", "plan.json", "plan.json"], "0 [] True False"),
        (["explain", "plan.json", "--no-moves"], "0 [] True False"),
        (["show", "plan.json", "--dot", "plan.dot"], "0 [] True False"),
    ],
)
def test_nothing_heavy_is_imported(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "plan.json").write_bytes((GOLDEN / "cli_plan.json").read_bytes())
    command = (sys.executable, "-c", SCRIPT, *arguments)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_the_api_is_imported_when_first_used() -> None:
    script = (
        "import sys, partitioner; before = 'tensorflow' in sys.modules; "
        "names = dir(partitioner); partitioner.plan; "
        "print(before, 'plan' in names, 'tensorflow' in sys.modules, 'ortools' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True)
    assert done.stdout == "False True True False\n"


def test_imports_run_in_one_direction() -> None:
    """The contracts of pyproject.toml: which package may import which, and who may import what is heavy."""
    importlinter = pytest.importorskip("importlinter.cli")
    assert importlinter.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0
