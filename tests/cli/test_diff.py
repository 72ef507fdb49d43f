"""`partition diff A B`: two saved plans compared, without TensorFlow, and refused where the second is worse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import GOLDEN, SMALL, Run


@pytest.fixture
def plans(tmp_path: Path) -> tuple[str, str]:
    """The golden plan, and in a directory of its own the same one 10 % slower, with 4,672 of 5,000 bytes used."""
    text = (GOLDEN / "cli_plan.json").read_text(encoding="utf-8")
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    plan = json.loads(text)
    plan["predicted"]["step_seconds"] *= 1.1
    plan["devices"][0]["memory_bytes"] = 5000
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return "a.json", "worse"


def test_a_plan_and_a_directory_are_compared(run: Run, plans: tuple[str, str]) -> None:
    code, out, err = run("diff", *plans)
    assert (code, err) == (0, "")
    assert out.startswith("A  small (small.py): a.json\nB  small (small.py): worse\n")
    assert "1.10x slower" in out
    assert "4.6 KiB / 4.9 KiB" in out or "4.6 / 4.9 KiB" in out
    assert len(out.splitlines()) <= 60


def test_json_is_the_comparison_alone(run: Run, plans: tuple[str, str]) -> None:
    code, out, err = run("diff", *plans, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["schema"] == "partition-diff/1"
    assert (told["is_same_model"], told["is_same_plan"]) == (True, False)
    assert [change["name"] for change in told["assumptions"]] == ["CPU:0"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fail-if-slower", "5%"], "10 % more than the 73.5 us of A; at most 5.0 % more is allowed"),
        (["--fail-if-memory", "90%"], "CPU:0 holds 4.6 KiB of the 4.9 KiB it may use, 93 %; at most 90 % is allowed"),
        (["--fail-if-slower", "5%", "--fail-if-memory", "90%", "--json"], "\n   |  CPU:0 holds 4.6 KiB"),
    ],
)
def test_a_check_that_fails_exits_7_with_the_numbers_after_the_comparison(
    run: Run, plans: tuple[str, str], flags: list[str], said: str
) -> None:
    code, out, err = run("diff", *plans, *flags)
    assert code == 7
    assert out
    assert err.startswith("error: worse: ")
    assert said in err


def test_checks_that_hold_exit_0(run: Run, plans: tuple[str, str]) -> None:
    before, after = plans
    assert run("diff", before, after, "--fail-if-slower", "10.1%", "--fail-if-memory", "94%")[0] == 0
    code, out, err = run("diff", before, before, "--fail-if-slower", "0%", "--fail-if-memory", "1%")
    assert (code, out.splitlines()[-1], err) == (0, "  the plans are the same", "")
    assert run("diff", after, before, "--fail-if-slower", "0%")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: A, B\n   help: partition diff --help"),
        (["a.json"], "required: B"),
        (["a.json", "gone.json"], "error: cannot read 'gone.json': No such file or directory"),
        (["a.json", "."], "error: cannot read 'plan.json': No such file or directory"),
        (["a.json", SMALL], "is a model, which `partition diff` does not read"),
        (["a.json", "worse", "--fail-if-slower", "5"], "'5' is not a percentage of at least 0, such as 5%"),
        (["a.json", "worse", "--fail-if-memory", "nan%"], "'nan%' is not a percentage"),
    ],
)
def test_wrong_usage(run: Run, plans: tuple[str, str], arguments: list[str], said: str) -> None:
    code, out, err = run("diff", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_plan_of_a_cost_graph_has_no_model_to_compare(
    run: Run, plans: tuple[str, str], file: Callable[..., str]
) -> None:
    assert run("graph", file(), "--time-limit", "300", "-q")[0] == 0
    code, out, err = run("diff", plans[0], "work_partitioned")
    assert (code, out) == (2, "")
    assert "work_partitioned is the plan of a cost graph" in err
    assert "help: partition check work_partitioned\n" in err
