"""Devices of a process: made in time, stood in for where absent, refused once TensorFlow has started."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from partitioner.emit.runtime import set_up_devices
from partitioner.errors import UsageError

PREFIX = "/job:localhost/replica:0/task:0/device:"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )


def test_absent_gpus_are_stood_in_for_by_cpus_beside_those_asked_for() -> None:
    found = set_up_devices([PREFIX + name for name in ("CPU:1", "GPU:0", "GPU:3")])
    assert found == {
        PREFIX + "CPU:1": PREFIX + "CPU:1",
        PREFIX + "GPU:0": PREFIX + "CPU:2",
        PREFIX + "GPU:3": PREFIX + "CPU:3",
    }


def test_a_device_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot run on .*task:1"):
        set_up_devices(["/job:worker/replica:0/task:1/device:GPU:0"])


def test_too_late_is_an_error_that_says_what_to_do() -> None:
    result = run_python(
        """
        import sys
        import keras
        import partitioner
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # starts TensorFlow
        try:
            partitioner.set_up_devices("CPU:0-2")
        except partitioner.PartitionError as error:
            print(error)
            sys.exit(error.exit_code)
        """
    )
    assert result.returncode == 2
    assert result.stdout.splitlines()[0] == ("TensorFlow has already started with 1 logical CPU device, 3 are needed")
    assert "call partitioner.set_up_devices([...]) before building the model" in result.stdout


def test_devices_set_up_first_are_there_and_may_be_asked_for_again() -> None:
    result = run_python(
        """
        import tensorflow as tf
        import partitioner
        partitioner.set_up_devices("CPU:0-2")
        tf.constant(1)
        partitioner.set_up_devices("CPU:1,GPU:0")
        print(len(tf.config.list_logical_devices("CPU")))
        """
    )
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr
