"""`partition worker --port N`, and `python -m partitioner.worker`, which is the same."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Run


@pytest.mark.parametrize("command", [("partitioner", "worker"), ("partitioner.worker",)])
def test_it_says_where_it_listens_and_what_it_lends_and_ends_with_ctrl_c(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    started = (sys.executable, "-m", *command, "--port", "0")
    with subprocess.Popen(started, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
    assert line.startswith("listening on port ")
    assert line.endswith("with CPU:0\n")
    assert int(line.split()[3]) > 0


def test_a_port_that_is_taken_exits_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = (sys.executable, "-m", "partitioner", "worker", "--port", str(port))
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"error: cannot listen on port {port}: " in done.stderr
    assert "help: port 0 takes a free port" in done.stderr


def test_which_port(run: Run) -> None:
    code, out, err = run("worker")
    assert (code, out) == (2, "")
    assert "required: --port\n   help: partition worker --help" in err
