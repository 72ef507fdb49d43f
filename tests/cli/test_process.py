"""The command line as a process: its streams as the shell sees them, signals, and the order of imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.commands import MODELS

PARTITION = (sys.executable, "-m", "partitioner")
PLAIN = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}


def test_a_run_shows_no_notice_of_a_library_and_its_plan_can_be_piped(tmp_path: Path) -> None:
    command = (*PARTITION, f"{MODELS}/noisy.py", "--devices", "CPU:0,CPU:1", "--json", "--time-limit", "5")
    done = subprocess.run(command, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "partition-plan/1"
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert lines == [
        "printed",
        "told",
        f"{MODELS}/noisy.py:12: UserWarning: the user's own warning",
        '  warnings.warn("the user\'s own warning", stacklevel=1)',
        "written below Python",
        "by a child process",
    ]

    # A reader that stops early, as `| head` does, is no error.
    shown = (*PARTITION, "show", "noisy_partitioned/plan.json")
    with subprocess.Popen(shown, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0

    # A terminal without box characters gets something in their place.
    env = {**PLAIN, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(shown, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "?????" in done.stdout


def test_interrupting_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    command = (*PARTITION, f"{MODELS}/encoder.py", "--devices", "CPU:0,CPU:1")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "tracing and planning" in line:
                os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        assert process.wait() == 130
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert lines[-1] == "interrupted\n"
    assert "Traceback" not in "".join(lines)
    assert not list(tmp_path.iterdir())


def test_tensorflow_imported_first_gives_a_model_and_no_crash(tmp_path: Path) -> None:
    """OR-Tools crashes in a process that has imported TensorFlow, so the solver runs in its own."""
    script = """
import tensorflow as tf
import numpy as np
import keras
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.constant(1) + 1  # TensorFlow has started
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(3)])
model.compile("sgd", "mse")
import partitioner
placed = partitioner.auto_place(model, devices=["CPU:0", "CPU:1"], strategy="layer-split", batch_size=8)
x, y = np.ones((16, 4), "float32"), np.zeros((16, 3), "float32")
before = placed.evaluate(x, y, batch_size=8, verbose=0)
placed.fit(x, y, batch_size=8, epochs=2, verbose=0)
print(isinstance(placed, keras.Model), placed.evaluate(x, y, batch_size=8, verbose=0) < before)
"""
    done = subprocess.run((sys.executable, "-c", script), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True\n"
