"""The help of the commands, on one screen where most people look, and what is said of flags that went."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from partitioner.cli import main
from partitioner.cli.main import SUB_COMMANDS
from partitioner.cli.old_flags import OLD_FLAGS
from tests.commands import SMALL, Run

FLAGS = {
    *("--devices", "--batch-size", "--input-shape", "--inference", "--strategy", "--objective", "--replicas"),
    *("--microbatches", "--schedule", "--recompute", "--updates", "--max-staleness", "--forbid", "--colocate"),
    *("--jit-compile", "--no-cache"),
    *(
        "--what-if",
        "--hardware",
        "--link",
        "--topology",
        "--costs",
        "--memory-limit",
        "--pin",
        "--time-limit",
        "--seed",
    ),
    *(
        "--optimizer",
        "--loss",
        "--output",
        "--dot",
        "--svg",
        "--png",
        "--level",
        "--stage",
        "--rankdir",
        "--verify",
        "--no-verify",
        "--json",
        "--dry-run",
    ),
    *("--plan", "--retarget", "--unsafe"),
    *("--dot", "--svg", "--png", "--level", "--stage", "--rankdir", "--quiet", "--verbose", "--version"),
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The help on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        return capsys.readouterr().out

    return shown


def test_the_help_is_one_screen(shown: Callable[..., str]) -> None:
    lines = shown("--help").splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80
    assert shown("-h").splitlines() == lines


def test_the_help_names_every_sub_command(shown: Callable[..., str]) -> None:
    text = shown("--help")
    assert {line.split()[0] for line in text.split("\ncommands")[1].splitlines()[1 : 1 + len(SUB_COMMANDS)]} == set(
        SUB_COMMANDS
    )


def test_the_long_help_has_every_flag_and_exit_code(shown: Callable[..., str]) -> None:
    short, text = shown("--help"), shown("--help-all")
    named = set(re.findall(r"--[a-z-]+", text.split("\ncommands")[0]))
    assert named - {"--help", "--help-all"} == FLAGS
    assert set(re.findall(r"--[a-z-]+", short.split("\ncommands")[0])) < named
    codes = re.findall(r"(?:^|  )(\d+)  ?\S", text.split("exit codes:")[1], re.MULTILINE)
    assert sorted(map(int, codes)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


@pytest.mark.parametrize("name", sorted(SUB_COMMANDS))
def test_each_sub_command_has_its_own(shown: Callable[..., str], name: str) -> None:
    text = shown(name, "--help")
    assert text.startswith(f"usage: partition {name} ")
    assert len(text.splitlines()) < 60


def test_the_version(shown: Callable[..., str]) -> None:
    assert re.fullmatch(r"partition \d+\.\d+\.\d+\n", shown("--version"))


@pytest.mark.parametrize("flag", OLD_FLAGS)
@pytest.mark.parametrize("is_joined", [False, True])
def test_a_flag_that_went_names_the_new_way(run: Run, flag: str, is_joined: bool) -> None:
    written = [flag.replace(" ", "=")] if is_joined else flag.split()
    for before in ([], [SMALL], [SMALL, "--devices", "CPU:0"]):
        code, out, err = run(*before, *written)
        assert (code, out) == (2, "")
        assert err == f"error: {flag} is no option any more\n   help: {OLD_FLAGS[flag]}\n"


def test_what_another_command_still_takes_is_no_old_flag_there(run: Run) -> None:
    code, _, err = run("graph", "gone.json", "--contiguous", "--work-limit", "2")
    assert code == 3
    assert "gone.json" in err
    code, _, err = run("check", "gone.json", "--workload", "gone.json")
    assert (code, "cannot read 'gone.json'" in err) == (2, True)
