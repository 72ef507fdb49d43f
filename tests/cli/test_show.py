"""`partition show PLAN`: a plan again as text, picture and JSON, without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import GOLDEN, Run


@pytest.fixture
def plan(tmp_path: Path) -> str:
    (tmp_path / "plan.json").write_bytes((GOLDEN / "cli_plan.json").read_bytes())
    return "plan.json"


def test_text_pictures_and_json(run: Run, plan: str, tmp_path: Path) -> None:
    code, out, err = run("show", plan, "--dot", "a.dot", "--svg", "a.svg")
    assert (code, err) == (0, "")
    assert out.split()[-3:] == ["files", "a.dot", "a.svg"]
    assert (tmp_path / "a.dot").read_text(encoding="utf-8").startswith("digraph")
    assert "<svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    code, again, _ = run("show", plan, "--json")
    assert code == 0
    assert json.loads(again)["placement"] == json.loads((tmp_path / plan).read_text(encoding="utf-8"))["placement"]


def test_levels_stages_and_png(run: Run, plan: str, tmp_path: Path) -> None:
    code, out, err = run("show", plan, "--dot", "a.dot", "--png", "a.png", "--level", "stage", "--rankdir", "LR")
    assert (code, err) == (0, "")
    assert out.split()[-2:] == ["a.dot", "a.png"]
    text = (tmp_path / "a.dot").read_text(encoding="utf-8")
    assert "rankdir=LR" in text and "<b>stage 0</b>" in text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_needs_graphviz_but_dot_does_not(
    run: Run, plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partitioner.report.images.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run("show", plan, "--dot", "a.dot", "--svg", "a.svg")
    assert (code, "an SVG needs Graphviz" in err, "pip install pygraphviz" in err) == (2, True, True)
    assert [(tmp_path / name).exists() for name in ("a.dot", "a.svg")] == [False, False]  # all or nothing
    assert run("show", plan, "--dot", "a.dot")[0] == 0
    assert (tmp_path / "a.dot").exists()


def test_verbose_shows_at_least_as_much(run: Run, plan: str) -> None:
    short, whole = (run("show", plan, *flags)[1] for flags in ((), ("-v",)))
    assert len(whole.splitlines()) >= len(short.splitlines()) > 5


def test_the_plan_of_a_cost_graph(run: Run, file: Callable[..., str], tmp_path: Path) -> None:
    code, out, _ = run("graph", file(), "--time-limit", "300", "-q")
    assert code == 0
    code, again, err = run("show", "work_partitioned/plan.json", "--dot", "a.dot")
    assert (code, err) == (0, "")
    assert again.split("\nfiles\n")[0] == out.split("\nfiles\n")[0]
    assert (tmp_path / "a.dot").read_text() == (tmp_path / "work_partitioned/placement.dot").read_text()
    code, text, _ = run("show", "work_partitioned/plan.json", "--json")
    assert text == (tmp_path / "work_partitioned/plan.json").read_text()


def test_what_cannot_be_written_exits_8(run: Run, plan: str) -> None:
    code, out, err = run("show", plan, "--dot", "/proc/a.dot")
    assert (code, out) == (8, "")
    assert err.startswith("error: cannot write /proc/a.dot: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: PLAN\n   help: partition show --help"),
        (["gone.json"], "error: cannot read 'gone.json': No such file or directory"),
        (["plan.json", "--dot", "no/x.dot"], "--dot: there is no directory 'no'\n   help: mkdir -p no"),
        (["plan.json", "--devices", "CPU:0"], "unknown option --devices\n   help: partition show --help"),
        (
            ["plan.json", "--microbatches", "4", "--schedule", "gpipe", "--recompute", "all"],
            "unknown option --microbatches",
        ),
        (
            ["plan.json", "--level", "op"],
            "--level is of a picture, and none was asked for\n   help: name its",
        ),
        (["plan.json", "--svg", "a.svg", "--stage", "7"], "the plan has no stage 7: it has "),
        (["plan.json", "--svg", "a.svg", "--level", "node"], "invalid choice: 'node'"),
        (["plan.json", "other.json"], "unexpected argument 'other.json'"),
        (["x.json"], "error: x.json is not a plan: "),
        (["work.json"], "is not a plan: it has no schema\n   help: if it is a cost graph: partition graph work.json"),
        (["model.py"], "`partition show` does not read\n   help: partition model.py --devices"),
    ],
)
def test_wrong_usage(
    run: Run, plan: str, file: Callable[..., str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    file()
    (tmp_path / "x.json").write_text('{"schema": "something/9"}')
    code, out, err = run("show", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_the_page_and_the_timeline_of_a_models_plan(run: Run, tmp_path: Path) -> None:
    plan = str(GOLDEN / "cli_plan.json")
    code, out, err = run("show", plan, "--html", "a.html", "--timeline", "a.json")
    assert (code, err) == (0, "")
    assert "a.html" in out and "a.json" in out
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    code, _, err = run("show", plan, "--html", "missing/a.html")
    assert code == 2 and "--html: there is no directory 'missing'" in err


def test_a_cost_graph_has_no_page(run: Run, file: Callable[..., str]) -> None:
    assert run("graph", file(), "--time-limit", "300", "-q")[0] == 0
    code, _, err = run("show", "work_partitioned/plan.json", "--html", "a.html")
    assert code == 2 and err.startswith("error: --html is of a model's plan, and this is a cost graph's")
