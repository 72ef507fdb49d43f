"""Stage 0 in one process and stage 1 in another, a worker on this machine: the same losses, or a reason why not."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests import models
from tests.twins import losses
from tests.workers import ROOT, SECONDS, Lines, Worker, environment, go_on, worker_in

REMOTE = "/job:worker/task:0/CPU:0"
STEPS = 10
ROWS = 16

# Trains `mlp` over this process and the worker in several ways; prints what the test compares, as JSON.
TRAIN = """
    ways = [
        {"microbatches": 1},
        {"microbatches": 4, "schedule": "1f1b", "recompute": "none"},
        {"microbatches": 4, "schedule": "gpipe", "recompute": "all"},
    ]
    found = []
    for way in ways:
        placed = placed_on(REMOTE, **way)
        held = [*placed.model.variables, *placed.optimizer.variables]
        found_losses = losses(placed, data, STEPS)
        checked = partitioner.verify(placed.model, placed, num_steps=2)
        found.append({
            "num_microbatches": placed.plan.num_microbatches,
            "losses": found_losses,
            "on_worker": [v.path for v in held if v.value.device.startswith("/job:worker/")],
            "passed": checked.passed,
            "misplaced": checked.misplaced_ops,
            "num_ops_checked": checked.num_ops_checked,
        })
    local = placed_on("CPU:1", **ways[1])
    looped = [placed_on(second, loop, microbatches=2, schedule="1f1b") for second in (REMOTE, "CPU:1")]
    looped = [partitioner.verify(p.model, p, num_steps=1) for p in looped]
    sharing = placed_on(REMOTE, replicas=(2, 1), microbatches=2)
    shared = losses(sharing, data, STEPS)
    sharing_check = partitioner.verify(sharing.model, sharing, num_steps=1)
    placed.save_weights("saved.weights.h5")
    placed.export("exported")
    loaded = partitioner.load("exported")
    print(json.dumps({
        "ways": found,
        "num_ops_checked_here": partitioner.verify(local.model, local, num_steps=1).num_ops_checked,
        "evaluated": [p.evaluate(*data, verbose=0, return_dict=True)["loss"] for p in (placed, loaded)],
        "next": [float(p.train_on_batch(*data, return_dict=True)["loss"]) for p in (placed, loaded)],
        "looped": [[v.passed, v.num_ops_checked] for v in looped],
        "sharing": {"losses": shared, "passed": sharing_check.passed, "devices": sharing.plan.used_devices},
        "refused": [refused("/job:worker/task:0/GPU:7"), refused("/job:worker/task:1/CPU:0")],
        "loaded": [v.value.device for v in loaded.variables_of_model],
    }))
"""

# Trains until the worker is gone, and again when there is a new one at its place; prints the errors.
LOSE = """
    plain, staged = placed_on(REMOTE, microbatches=1), placed_on(REMOTE, microbatches=4, schedule="1f1b")
    many = [np.tile(array, [2000, *[1] * (array.ndim - 1)]) for array in data]
    plain.train_on_batch(*data)
    staged.train_on_batch(*data)
    for placed in (staged, plain, staged):
        print("training", flush=True)
        try:
            placed.fit(*many, batch_size=ROWS, epochs=100, verbose=0)
        except tf.errors.UnavailableError as error:
            print(json.dumps(error.message), flush=True)
        input()
"""

HANG = """
    from partitioner.emit.cluster import silent_worker
    placed = placed_on(REMOTE, microbatches=4, schedule="1f1b")
    placed.train_on_batch(*data)
    # Not before: on a busy machine a worker that does much may not answer for so long.
    silent_worker.CHECK_SECONDS = silent_worker.ANSWER_SECONDS = 3.0
    print("trained", flush=True)
    input()
    try:
        placed.train_on_batch(*data)
    except tf.errors.UnavailableError as error:
        print(json.dumps(error.message), flush=True)
    input()
"""

SETTING = f"""
import json, sys
import partitioner
REMOTE, ROWS, STEPS = {REMOTE!r}, {ROWS}, {STEPS}
partitioner.set_up_devices(["CPU:0", "CPU:1", REMOTE], cluster={{"worker": ["localhost:PORT"]}})
import keras
import numpy as np
import tensorflow as tf
from tests import models
from tests.asking import asked
from tests.twins import losses
data = models.vectors(ROWS)

def loop():
    inputs = keras.Input((models.WIDTH,))
    x = keras.layers.Reshape((3, 4))(keras.layers.Dense(12, name="hidden_0")(inputs))
    x = keras.layers.LSTM(3, name="hidden_1")(x)
    return models.compiled(keras.Model(inputs, keras.layers.Dense(models.CLASSES, name="scores")(x)))

def refused(device):
    try:
        partitioner.set_up_devices([device])
    except partitioner.UsageError as error:
        return str(error)

def placed_on(second, build=models.mlp, **way):
    keras.utils.set_random_seed(3)
    model = build()
    pins = {{"hidden_0": "CPU:0", "hidden_[12].*|scores": second}}
    how = {{"devices": ["CPU:0", second], "strategy": "layer-split", "pins": pins}}
    if "replicas" in way:  # one here and one there, and the other device for both
        how = {{"devices": ["CPU:0", second, "CPU:1"], "strategy": "mixed", "memory_limit": "1GiB"}}
    plan = partitioner.plan(model, **asked(batch_size=ROWS, time_limit=5, **how, **way))
    return partitioner.place(model, plan)
"""


def script(body: str, port: str) -> tuple[str, ...]:
    lines = [line.removeprefix("    ") for line in body.splitlines()]
    return sys.executable, "-c", SETTING.replace("PORT", port) + "\n".join(lines)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker_in(tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture(scope="module")
def trained(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run(
        script(TRAIN, worker.port), cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "folder": folder}


@pytest.fixture(scope="module")
def unplaced() -> tuple[keras.Model, list[float]]:
    """The model after ten steps without any of this, and its losses."""
    keras.utils.set_random_seed(3)
    model = models.mlp()
    return model, losses(model, models.vectors(ROWS), STEPS)


@pytest.mark.parametrize(("index", "num_microbatches"), [(0, 1), (1, 4), (2, 4)], ids=["plain", "1f1b", "gpipe"])
def test_ten_steps_over_two_processes_equal_the_unplaced_models(
    trained: Any, unplaced: tuple[keras.Model, list[float]], index: int, num_microbatches: int
) -> None:
    found = trained["ways"][index]
    assert found["num_microbatches"] == num_microbatches
    np.testing.assert_allclose(found["losses"], unplaced[1], rtol=1e-6)
    assert found["passed"]


def test_replicas_in_two_processes_share_a_device(trained: Any, unplaced: tuple[keras.Model, list[float]]) -> None:
    found = trained["sharing"]
    assert [name.split("/")[1] for name in found["devices"]] == ["job:localhost", "job:localhost", "job:worker"]
    np.testing.assert_allclose(found["losses"], unplaced[1], rtol=1e-6)
    assert found["passed"]


@pytest.mark.parametrize("index", range(3))
def test_stage_1_with_its_variables_and_slots_is_on_the_worker(trained: Any, index: int) -> None:
    found = trained["ways"][index]
    on_worker = {path.split("/")[-1] if "adam" in path else path for path in found["on_worker"]}
    for layer in ("hidden_1", "hidden_2", "scores"):
        for weight in ("kernel", "bias"):
            assert f"{layer}/{weight}" in on_worker
            assert {f"{layer}_{weight}_momentum", f"{layer}_{weight}_velocity"} <= on_worker
    assert not any("hidden_0" in path for path in on_worker)
    assert found["misplaced"] == []


def test_an_audit_sees_the_ops_of_a_worker(trained: Any) -> None:
    """As many as if both stages were here."""
    assert trained["ways"][1]["num_ops_checked"] == trained["num_ops_checked_here"]
    (passed, remote), (_, local) = trained["looped"]
    assert passed
    assert remote == local


def test_what_the_connected_workers_lack_is_refused(trained: Any) -> None:
    no_device, no_worker = trained["refused"]
    assert no_device.startswith("the workers do not have /job:worker/task:0/GPU:7\n")
    assert no_worker.startswith("this process is not connected to /job:worker/task:1\n")


def test_weights_and_saved_models_are_written_here_and_read_back(
    trained: Any, unplaced: tuple[keras.Model, list[float]], worker: Worker
) -> None:
    folder = trained["folder"]
    assert trained["evaluated"][0] == trained["evaluated"][1]
    assert trained["next"][0] == trained["next"][1]
    assert {device.split("/")[1] for device in trained["loaded"]} == {"job:localhost", "job:worker"}
    keras.utils.set_random_seed(0)
    other = models.mlp()
    other.load_weights(folder / "saved.weights.h5")
    for found, expected in zip(other.get_weights(), unplaced[0].get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not list(worker.folder.iterdir())


def test_a_lost_worker_is_named_and_a_new_one_is_no_substitute(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(script(LOSE, worker.port), env=environment(), **pipes) as process:
            assert process.stdin is not None
            try:
                lines = Lines(process)
                assert lines.next() == "training\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1.0)  # it trains
                worker.kill()
                expected = f"lost {REMOTE}: the worker at localhost:{worker.port} has ended or hangs\n"
                assert json.loads(lines.next()).startswith(expected)
                go_on(process.stdin)
                assert [lines.next(), json.loads(lines.next())[: len(expected)]] == ["training\n", expected]
                with worker_in(tmp_path, int(worker.port)):
                    go_on(process.stdin)
                    assert [lines.next(), json.loads(lines.next())[: len(expected)]] == ["training\n", expected]
            finally:
                process.kill()


def test_a_worker_that_hangs_is_named_and_waited_for_no_longer(tmp_path: Path) -> None:
    with worker_in(tmp_path) as worker:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(script(HANG, worker.port), env=environment(), **pipes) as process:
            try:
                lines = Lines(process)
                assert lines.next() == "trained\n"
                worker.process.send_signal(signal.SIGSTOP)
                go_on(process.stdin)
                assert json.loads(lines.next()).startswith(f"lost {REMOTE}: the worker at localhost:{worker.port} has")
                worker.kill()
                go_on(process.stdin)
                assert process.wait(SECONDS) == 0
            finally:
                process.kill()


def test_the_command_line_takes_workers_from_tf_config(worker: Worker, tmp_path: Path) -> None:
    config = json.dumps({"cluster": {"worker": [f"localhost:{worker.port}"]}})
    done = partition(tmp_path, "--strategy", "layer-split", "--json", "--time-limit", "5", TF_CONFIG=config)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["verification"]["passed"]
    assert plan["verification"]["misplaced_ops"] == []
    assert plan["devices"][1]["name"] == "/job:worker/replica:0/task:0/device:CPU:0"
    assert (tmp_path / "models_partitioned" / "placed_model" / "saved_model.pb").is_file()


def test_the_command_line_tells_where_no_worker_answers(tmp_path: Path) -> None:
    with socket.socket() as deaf:  # takes connections, and says nothing
        deaf.bind(("localhost", 0))
        deaf.listen()
        address = f"localhost:{deaf.getsockname()[1]}"
        done = partition(tmp_path, TF_CONFIG=json.dumps({"cluster": {"worker": [address]}}))
    assert done.returncode == 2
    assert f"error: no worker answers at {address}\n" in done.stderr
    assert f"help: start it there: partition worker --port {address.split(':')[1]}" in done.stderr
    assert not list(tmp_path.iterdir())


def partition(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "partitioner", f"{ROOT / 'tests' / 'models.py'}:mlp", "--batch-size", str(ROWS))
    return subprocess.run(
        (*command, "--devices", f"CPU:0,{REMOTE}", *options),
        cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
