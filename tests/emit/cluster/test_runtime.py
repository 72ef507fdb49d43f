"""Devices of a process: made in time, stood in for where absent, refused once TensorFlow has started; workers found."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from partitioner.emit.cluster.runtime import set_up_devices
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


WORKER = "/job:worker/replica:0/task:1/device:GPU:0"


def test_a_device_of_an_unknown_worker_is_refused_with_ways_to_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UsageError, match=r"cannot run on /job:worker/task:1: the address is unknown") as raised:
        set_up_devices([WORKER])
    assert raised.value.notes == ("no cluster is given",)
    assert "cluster=" in str(raised.value.help)
    assert """TF_CONFIG='{"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}}'""" in str(raised.value.help)
    with pytest.raises(UsageError) as raised:
        set_up_devices([WORKER], {"worker": ["localhost:1"]})
    assert raised.value.notes == ("the cluster has /job:worker/task:0",)
    many = [f"/job:worker/replica:0/task:{task}/device:GPU:0" for task in range(64)]
    with pytest.raises(UsageError, match=r"cannot run on /job:worker/task:0-63: the address is unknown") as raised:
        set_up_devices(many)
    assert """{"cluster": {"worker": ["HOST:PORT", "... 64 in all"]}}""" in str(raised.value.help)


@pytest.mark.parametrize("cluster", [{"worker": ["localhost"]}, {"worker": 2222}, "localhost:2222"])
def test_what_is_no_cluster_is_refused(cluster: object) -> None:
    with pytest.raises(UsageError, match=r"is not (a cluster|the address of a worker)"):
        set_up_devices([WORKER], cluster)


@pytest.mark.parametrize("text", ["{", "[]", '{"cluster": 3}', '{"task": {"type": "chief"}}'])
def test_a_wrong_tf_config_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UsageError, match=r"TF_CONFIG is not as TensorFlow wants it|is not a cluster"):
        set_up_devices([WORKER])


def test_workers_of_tf_config_are_found_without_this_process_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(UsageError) as raised:
        set_up_devices([WORKER])
    assert raised.value.notes == ("the cluster has /job:chief/task:0, /job:worker/task:0",)


def test_connecting_after_tensorflow_has_started_is_refused() -> None:
    tf.constant(1)
    with pytest.raises(UsageError, match=r"already started, and connecting to workers would cut it off"):
        set_up_devices([WORKER], {"worker": ["localhost:1", "localhost:1"]})


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
