"""A step that fails, or is interrupted, raises soon and leaves everything as it was; the next step then runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked

import partitioner
from partitioner.emit.keras.interrupt import interruptible
from partitioner.emit.pipeline.update_lock import acquire_updates
from tests import models
from tests.failing import MICROBATCHES, ROWS, STAGES, marked, marked_model
from tests.twins import cpus


def placed_in_stages(model: keras.Model, schedule: str, recompute: str) -> Any:
    plan = partitioner.plan(
        model,
        **asked(
            devices=cpus(STAGES),
            batch_size=ROWS,
            strategy="layer-split",
            microbatches=MICROBATCHES,
            schedule=schedule,
            recompute=recompute,
            pins={f"stage_{stage}_.*": f"CPU:{stage + 1}" for stage in range(STAGES)},
            time_limit=8,
        ),
    )
    for stage, layers_of_stage in enumerate(plan.stages):
        assert f"stage_{stage}_fails" in layers_of_stage.layers
    return partitioner.place(model, plan)


def state(model: Any) -> list[Any]:
    """Everything a step may change, and the metrics."""
    random = [g.state for layer in model.layers if (g := getattr(layer, "seed_generator", None)) is not None]
    return [*model.variables, *model.optimizer.variables, *random]


def values(variables: list[Any]) -> list[Any]:
    return [np.array(variable) for variable in variables]


def assert_same(variables: list[Any], before: list[Any]) -> None:
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), value, err_msg=variable.path)


@pytest.fixture(
    scope="module",
    params=[("1f1b", "none"), ("gpipe", "all")],
    ids=["1f1b", "gpipe-recompute"],
)
def twins(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The unplaced model and the placed one, with equal weights."""
    models_made = [marked_model(stateful=False) for _ in range(2)]
    models_made[1].set_weights(models_made[0].get_weights())
    placed = placed_in_stages(models_made[1], *request.param)
    for model in (models_made[0], placed):
        model.train_on_batch(*marked(0))
    return models_made[0], placed


@pytest.mark.parametrize("microbatch", [0, MICROBATCHES - 1])
@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_op_that_fails_is_named_and_leaves_every_variable_as_it_was(
    twins: tuple[Any, Any], direction: str, stage: int, microbatch: int
) -> None:
    model, placed = twins
    held = state(placed.model)
    for variable, source in zip(state(model), held, strict=True):
        variable.assign(np.array(source))
    before = values(held)
    began = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        placed.train_on_batch(*marked({"forward": 10, "backward": 20}[direction] + stage, microbatch))
    assert time.monotonic() - began < 3
    message = str(raised.value)
    assert f"spoiled {direction}" in message
    assert f"stage_{stage}_fails" in message
    assert f"/{stage}{direction[0].upper()}{microbatch}/" in message
    assert_same(held, before)
    assert all(float(variable) == 0 for variable in placed.metrics_variables)  # as train_on_batch resets them
    again, expected = (m.train_on_batch(*marked(0), return_dict=True) for m in (placed, model))
    for name, value in expected.items():
        assert float(again[name]) == pytest.approx(float(value), rel=1e-6)
    for found, wanted in zip(values(held), values(state(model)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("direction", [10, 20])
def test_moving_averages_and_random_state_are_as_before_a_step_that_fails(direction: int) -> None:
    placed = placed_in_stages(marked_model(stateful=True), "1f1b", "none")
    placed.train_on_batch(*marked(0))
    held = state(placed.model)
    before = values(held)
    unmarked = placed.train_on_batch(*marked(0))
    changed = values(held)
    assert sum(not np.array_equal(a, b) for a, b in zip(changed, before, strict=True)) > len(held) // 2
    for variable, value in zip(held, before, strict=True):
        variable.assign(value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled"):
        placed.train_on_batch(*marked(direction, MICROBATCHES - 1))
    assert_same(held, before)
    # As if the step had not been: the same random numbers, the same averages.
    np.testing.assert_allclose(placed.train_on_batch(*marked(0)), unmarked, rtol=1e-6)
    for variable, value in zip(held, changed, strict=True):
        np.testing.assert_allclose(np.array(variable), value, rtol=1e-6, atol=1e-7, err_msg=variable.path)


def test_a_batch_that_fails_within_an_epoch_is_not_counted(twins: tuple[Any, Any]) -> None:
    _, placed = twins
    batches = [marked(0), marked(20, MICROBATCHES - 1)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled backward"):
        placed.fit((batch for batch in batches), steps_per_epoch=2, verbose=0)
    count = next(variable for variable in placed.metrics_variables if variable.path == "loss/count")
    assert float(count) == ROWS


def test_a_model_compiled_anew_can_still_be_interrupted() -> None:
    model = models.mlp()
    plan = partitioner.plan(model, devices=["CPU:1", "CPU:2"], batch_size=ROWS, microbatches=2, time_limit=4)
    placed = partitioner.place(model, plan)
    assert placed.program.is_staged
    placed.compile("sgd", "mse")
    assert placed.program.is_staged


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_a_handler_of_the_users_own_decides() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            assert float(tf.function(lambda: tf.constant(1.0))()) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_whoever_waits_for_signals_is_still_told_and_put_back() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        assert os.read(read, 8) == bytes([signal.SIGINT])
    finally:
        assert signal.set_wakeup_fd(before) == write
        os.close(read)
        os.close(write)


def test_steps_share_the_thread_that_waits_for_ctrl_c() -> None:
    """Each step started one, which took a placed step of 6 ms half a millisecond where all cores were busy."""
    with interruptible():
        count = threading.active_count()
    assert threading.active_count() == count
    with interruptible():
        assert threading.active_count() == count


def test_ctrl_c_in_one_step_does_not_stop_the_next() -> None:
    one = tf.function(lambda: tf.constant(1.0))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        with interruptible():
            assert float(one()) == 1


def test_other_threads_and_inner_guards_change_nothing() -> None:
    descriptors: list[int] = []

    def guarded() -> None:
        with interruptible():
            descriptors.append(threading.active_count())

    thread = threading.Thread(target=guarded)
    alone = threading.active_count()
    thread.start()
    thread.join()
    assert descriptors == [alone + 1]  # the thread itself
    with interruptible():
        outer = threading.active_count()
        with interruptible():
            assert threading.active_count() == outer


def test_who_cancels_waits_for_updates() -> None:
    taken = threading.Event()

    def take() -> None:
        acquire_updates()
        taken.set()

    held = [acquire_updates()]
    threading.Thread(target=take, daemon=True).start()
    assert not taken.wait(0.2)
    held.clear()
    assert taken.wait(5)


@pytest.fixture(scope="module")
def interruptions() -> dict[str, tuple[float, str]]:
    """By scenario of `tests.interrupted`: seconds from Ctrl-C to KeyboardInterrupt, and the state it left."""
    found: dict[str, tuple[float, str]] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.interrupted"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            time.sleep(0.5)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            if line.strip() == "twice":
                time.sleep(0.5)
                child.send_signal(signal.SIGINT)
            at, left = child.stdout.readline().split()
            found[line.strip()] = float(at) - sent, left
        assert child.wait() == 0  # the steps after ran
    return found


@pytest.mark.parametrize("scenario", ["train_on_batch", "fit", "evaluate", "predict"])
def test_ctrl_c_stops_a_step_and_leaves_every_variable_as_it_was(
    interruptions: dict[str, tuple[float, str]], scenario: str
) -> None:
    seconds, left = interruptions[scenario]
    assert left == "before"
    assert seconds < 3


def test_ctrl_c_waits_for_updates_that_have_begun(interruptions: dict[str, tuple[float, str]]) -> None:
    _, left = interruptions["updates"]
    assert left == "after"


def test_a_second_ctrl_c_does_not_wait(interruptions: dict[str, tuple[float, str]]) -> None:
    seconds, left = interruptions["twice"]
    assert left in ("part", "before")
    assert seconds < 3
