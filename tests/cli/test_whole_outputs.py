"""Outputs appear together or not at all, whatever goes wrong while they are written or moved."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from partitioner.cli.interruption import Terminated, interruptions_raised
from partitioner.cli.whole_outputs import whole_outputs
from partitioner.errors import WriteError
from tests.commands import GOLDEN, SMALL, TWO, Run


def text(value: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(value)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))
    }


def test_files_and_directories_appear_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/old.txt").write_text("old")
    (tmp_path / "there/kept.txt").write_text("kept")
    (tmp_path / "link.txt").symlink_to("there/linked.txt")
    before = contents(tmp_path)
    with whole_outputs() as outputs:
        outputs.write(tmp_path / "new/deep/a.txt", text("a"))
        outputs.write(tmp_path / "new/deep/b", lambda path: (path.mkdir(), (path / "c.txt").write_text("c")))
        outputs.write(tmp_path / "there/old.txt", text("new"))
        outputs.write(tmp_path / "link.txt", text("linked"))
        outputs.drop(tmp_path / "there/kept.txt")
        assert {name: value for name, value in contents(tmp_path).items() if ".partition-" not in name} == before
    assert contents(tmp_path) == {
        "link.txt": "linked", "new": "", "new/deep": "", "new/deep/a.txt": "a", "new/deep/b": "",
        "new/deep/b/c.txt": "c", "there": "", "there/linked.txt": "linked", "there/old.txt": "new",
    }  # fmt: skip
    assert (tmp_path / "link.txt").is_symlink()


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated, ValueError, OSError(28, "No space left on device")])
def test_whatever_is_raised_everything_is_as_before(tmp_path: Path, error: type[BaseException] | OSError) -> None:
    (tmp_path / "old.txt").write_text("old")

    def fails(path: Path) -> None:
        path.write_text("half")
        raise error

    raised = WriteError if isinstance(error, OSError) else error
    with pytest.raises(raised) as caught, whole_outputs() as outputs:
        outputs.write(tmp_path / "old.txt", text("new"))
        outputs.write(tmp_path / "new/a.txt", text("a"))
        outputs.write(tmp_path / "new/b.txt", fails)
    assert contents(tmp_path) == {"old.txt": "old"}
    if raised is WriteError:
        assert str(caught.value).startswith(f"cannot write {tmp_path / 'new/b.txt'}: No space left on device")


def test_what_cannot_be_moved_moves_everything_back(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    with pytest.raises(WriteError, match=r"cannot write .*b\.txt"), whole_outputs() as outputs:
        outputs.write(tmp_path / "old.txt", text("new"))
        outputs.write(tmp_path / "b.txt", text("b"))
        next(tmp_path.glob(".partition-*/new/b.txt")).unlink()
    assert contents(tmp_path) == {"old.txt": "old"}


def test_a_file_takes_no_directorys_place(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("text")
    with pytest.raises(WriteError, match="mine: it is a directory"), whole_outputs() as outputs:
        outputs.write(tmp_path / "mine", text("picture"))
    assert contents(tmp_path) == {"mine": "", "mine/thesis.tex": "text"}


def test_a_signal_while_files_move_waits_until_all_have(tmp_path: Path) -> None:
    class Slow(type(tmp_path)):
        def rename(self, target: Path) -> Path:
            os.kill(os.getpid(), signal.SIGTERM)
            return Path(self).rename(target)

    with pytest.raises(Terminated), interruptions_raised(), whole_outputs() as outputs:
        for name in ("a.txt", "b.txt"):
            outputs.write(tmp_path / name, text(name))
        outputs._staged = {place: Slow(staged) for place, staged in outputs._staged.items()}
    assert contents(tmp_path) == {"a.txt": "a.txt", "b.txt": "b.txt"}


def test_other_threads_have_no_signals(tmp_path: Path) -> None:
    def write() -> None:
        with interruptions_raised(), whole_outputs() as outputs:
            outputs.write(tmp_path / "a.txt", text("a"))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert contents(tmp_path) == {"a.txt": "a"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_exits_8(run: Run) -> None:
    plan = str(GOLDEN / "cli_plan.json")
    for flag in ("--dot", "--html", "--timeline"):
        code, out, err = run("show", plan, flag, "/dev/full")
        assert (code, out) == (8, "")
        assert "error: cannot write /dev/full: No space left on device\n" in err


@pytest.mark.parametrize("most_bytes", [4_000, 60_000])
def test_a_run_without_room_leaves_what_was_there(run: Run, tmp_path: Path, most_bytes: int) -> None:
    """The disk is as full as a limit of file sizes makes it: plan.json does not fit, or the SavedModel does not."""
    given = (SMALL, "--plan", str(GOLDEN / "cli_plan.json"), "--no-verify", "-q", "-o", "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/plan.json").write_text("{}")
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {resource.RLIM_INFINITY}))\n"
        "import sys; from partitioner.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, *given, "--svg", "a.svg"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 8, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: cannot write out/{'plan.json' if most_bytes < 10_000 else 'placed_model'}: ")
    assert contents(tmp_path) == {"out": "", "out/plan.json": "{}"}


def test_a_second_run_into_the_same_directory_replaces_the_first(tmp_path: Path, run: Run) -> None:
    """It took its own temporary directory for one that a killed run had left."""
    arguments = (SMALL, *TWO, "--strategy", "layer-split", "--time-limit", "5", "--no-verify", "-q", "-o", "out")
    assert run(*arguments)[0] == 0
    (tmp_path / "out/.partition-1-0").mkdir()  # of a run that was killed
    assert run(*arguments, "--svg", "out/../picture.svg")[0] == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"plan.json", "placement.dot", "timeline.json", "report.html", "placed_model"}
    assert (tmp_path / "picture.svg").is_file()
