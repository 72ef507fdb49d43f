"""Ctrl-C and SIGTERM in every phase of a run, as a process: no child, no temporary file, no half output, and the code
that shells report."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from partitioner.cli.interruption import Terminated, interruptions_raised
from partitioner.errors import ModelError, WriteError
from tests.commands import SMALL, TWO

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
PHASES = ("loading TensorFlow", "loading /", "tracing and planning", "placing", "verifying", "measuring", "writing")


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def ended(folder: Path, phase: str, number: signal.Signals, delay: float = 0.0) -> tuple[int, str]:
    """Exit code and stderr of a run that gets a signal so many seconds after a phase begins."""
    (folder / "tmp").mkdir()
    (folder / "work").mkdir()
    (folder / "work/report.txt").write_text("mine")
    command = (sys.executable, "-m", "partitioner", SMALL, *TWO, "--time-limit", "8", "--svg", "a.svg")
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=folder / "work", env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if phase in line:
                time.sleep(delay)
                process.send_signal(number)
        code = process.wait()
    return code, "".join(lines)


@pytest.mark.parametrize("number", CODES, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    code, err = ended(tmp_path, phase, number, delay=0.05)
    assert code == CODES[number], err
    assert err.splitlines()[-1] == {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert "Traceback" not in err
    patience = time.monotonic() + 5
    while (left := processes_in(tmp_path)) and time.monotonic() < patience:
        time.sleep(0.1)
    assert not left
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["report.txt"]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_that_c_code_turned_into_an_error_of_its_own(
    number: signal.Signals, kind: type[BaseException]
) -> None:
    """TensorFlow made a SystemError of a SIGTERM that came while it built a list; the run ended as a bug of ours."""
    with pytest.raises(kind), interruptions_raised():
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)
        try:
            raise SystemError("bad argument to internal function")
        except SystemError as error:
            raise ModelError("model.call raised SystemError") from error


def test_an_error_of_ours_after_an_interrupt_stays_what_it_is() -> None:
    """Ctrl-C ends a search, which goes on to a plan; if that cannot be written, the run says so."""
    with pytest.raises(WriteError), interruptions_raised():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise WriteError("no room")
