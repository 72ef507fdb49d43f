"""Replicas that do not wait for each other: nothing lost, nothing twice, staleness bounded, the numbers right."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from partitioner.emit.asynchronous.replicas import AsyncReplicas, LostReplicaError
from partitioner.emit.graph.mirrored_variable import each_copy
from partitioner.emit.graph.rewriting import op_by_op
from partitioner.emit.graph.variables import held_variable
from partitioner.errors import InfeasibleError, UsageError
from partitioner.ir.plan import DeviceMemory, ModelInfo, PlanDocument, Predicted, SolverInfo, Stage, Strategy
from partitioner.options import AsyncUpdates, Machine, Parallelism, Request, Step
from partitioner.planner.document.async_updates import with_async_updates
from tests import models
from tests.embeddings import embedded, tokens
from tests.failing import marked, marked_model
from tests.twins import cpus, equal_pair, relative, variables, weights

ROWS = 16
TOLERANCE = 1e-6
PATIENCE = 60.0  # seconds that nothing here should take


# -- threads -----------------------------------------------------------------------------------------------------------


class Shared:
    """What the workers of a test share: the numbers of the batches applied to it, in order."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.staleness: Counter[int] = Counter()
        self.writing = threading.Lock()


class Recorder:
    """A worker that tells by itself how stale it is; `work` is what it does with a batch.

    It is lost when that raises `LostReplicaError`, and back as soon as it is asked.
    """

    def __init__(self, shared: Shared, work: Callable[[int], None]) -> None:
        self.shared, self.work = shared, work
        self.seen = -1
        self.missing = False

    def pull(self) -> None:
        self.seen = len(self.shared.applied)

    def compute(self, batch: int) -> int:
        assert not self.missing
        try:
            self.work(batch)
        except LostReplicaError:
            self.missing = True
            raise
        return batch

    def is_back(self) -> bool:
        self.missing = False
        return True

    def push(self, computed: int) -> None:
        assert self.shared.writing.acquire(blocking=False), "two updates at once"
        self.shared.staleness[len(self.shared.applied) - self.seen] += 1
        self.shared.applied.append(computed)
        self.shared.writing.release()


def replicas_of(count: int, max_staleness: int, *works: Callable[[int], None]) -> tuple[AsyncReplicas, Shared]:
    """Replicas of which the first ones do what `works` say, and the others nothing that takes time."""
    shared = Shared()
    idle: list[Callable[[int], None]] = [lambda batch: None] * (count - len(works))
    workers = [Recorder(shared, work) for work in (*works, *idle)]
    return AsyncReplicas(workers, max_staleness), shared


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_batch_is_applied_once_within_the_bound(count: int, max_staleness: int) -> None:
    """Whatever replicas take for their batches, over several epochs."""
    draw = random.Random(10 * count + max_staleness)
    pauses = [draw.choice([0, 0, 0.0005, 0.003]) for _ in range(120)]
    replicas, shared = replicas_of(count, max_staleness, *[lambda batch: time.sleep(pauses[batch])] * count)
    finished = []
    for epoch in range(3):
        for batch in range(40 * epoch, 40 * epoch + 40):
            replicas.submit(batch)
            finished += replicas.finished()
        replicas.join()
        assert sorted(shared.applied) == list(range(40 * epoch + 40))
        finished += replicas.finished()
    assert sorted(finished) == [(batch, batch) for batch in range(120)]
    assert replicas.staleness == shared.staleness
    assert max(shared.staleness) <= max_staleness
    if max_staleness == 0 or count == 1:
        assert shared.applied == list(range(120))


@pytest.mark.parametrize("max_staleness", [3, 12])
def test_a_slow_replica_lets_the_others_do_as_much_as_the_bound_allows(max_staleness: int) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(batch: int) -> None:
        if not begun.is_set():
            begun.set()
            assert may_end.wait(PATIENCE)

    def quick(batch: int) -> None:
        assert begun.wait(PATIENCE)  # lest the slow one gets no batch at all

    replicas, shared = replicas_of(4, max_staleness, slow, quick, quick, quick)
    giver = threading.Thread(target=lambda: [replicas.submit(batch) for batch in range(40)])
    giver.start()
    deadline = time.monotonic() + PATIENCE
    while len(shared.applied) < max_staleness and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(shared.applied) == max_staleness  # all that may be applied before the slow one, and no more
    may_end.set()
    giver.join(PATIENCE)
    replicas.join()
    assert sorted(shared.applied) == list(range(40))
    assert shared.staleness[max_staleness] >= 1
    assert max(shared.staleness) == max_staleness


def test_one_replica_of_four_five_times_slower_costs_little() -> None:
    """Synchronous replicas apply four batches while the slow one computes one; these at least three times as many."""
    unit, batches = 0.05, 96
    of_slow: list[int] = []

    def slow(batch: int) -> None:
        of_slow.append(batch)
        time.sleep(5 * unit)

    def quick(batch: int) -> None:
        time.sleep(unit)

    replicas, shared = replicas_of(4, 16, slow, quick, quick, quick)
    for batch in range(batches):
        replicas.submit(batch)
    replicas.join()
    assert sorted(shared.applied) == list(range(batches))
    assert max(shared.staleness) <= 16
    assert batches / len(of_slow) >= 3 * 4


@pytest.mark.parametrize("max_staleness", [0, 1, 6])
def test_batches_of_lost_replicas_are_applied_once_by_others(max_staleness: int) -> None:
    """Whoever computes a fifth of the batches first is lost, in each of three epochs."""
    tried: Counter[int] = Counter()

    def loses(batch: int) -> None:
        time.sleep(0.0005)
        tried[batch] += 1
        if batch % 5 == 0 and tried[batch] == 1:
            raise LostReplicaError

    replicas, shared = replicas_of(4, max_staleness, *[loses] * 4)
    for epoch in range(3):
        for batch in range(40 * epoch, 40 * epoch + 40):
            replicas.submit(batch)
        replicas.join()
        assert sorted(shared.applied) == list(range(40 * epoch + 40))
    assert tried == {batch: 1 + (batch % 5 == 0) for batch in range(120)}
    assert sum(replicas.losses) == 24
    assert all(away in (0, 1) for away in np.subtract(replicas.losses, replicas.returns))
    assert sum(replicas.updates) == 120
    assert replicas.staleness == shared.staleness
    assert max(shared.staleness) <= max_staleness


def test_an_error_ends_all_and_is_raised_at_once() -> None:
    raised = []

    def fails(batch: int) -> None:
        if batch == 7:
            raised.append(time.monotonic())
            raise ValueError("batch 7 is bad")

    replicas, shared = replicas_of(3, 4, fails, fails, fails)
    with pytest.raises(ValueError, match="batch 7 is bad"):
        for batch in range(1000):
            replicas.submit(batch)
        replicas.join()
    assert time.monotonic() - raised[0] < 1
    assert 7 not in shared.applied
    assert len(shared.applied) == len(set(shared.applied)) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replica_")]
    before = list(shared.applied)
    for batch in range(1000, 1010):
        replicas.submit(batch)
    replicas.join()
    assert sorted(shared.applied[len(before) :]) == list(range(1000, 1010))
    assert max(shared.staleness) <= 4


def test_ctrl_c_ends_the_wait_for_replicas() -> None:
    released = threading.Event()

    def press(batch: int) -> None:
        if batch == 0:
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(PATIENCE)

    replicas, shared = replicas_of(2, 0, press, press)
    with pytest.raises(KeyboardInterrupt):
        for batch in range(10):
            replicas.submit(batch)
        replicas.join()
    threading.Timer(0.05, released.set).start()
    replicas.stop()
    assert shared.applied == []


# -- models ------------------------------------------------------------------------------------------------------------


def placed_in(
    model: keras.Model, replicas: int, stages: int = 1, *, max_staleness: int | None = None, **options: Any
) -> Any:
    plan = partitioner.plan(
        model,
        **asked(
            devices=cpus(replicas * stages),
            batch_size=ROWS,
            strategy="mixed" if replicas * stages > 1 else "single",
            replicas=replicas,
            updates="async",
            max_staleness=max_staleness,
            time_limit=2,
            **{"microbatches": 1, **options},
        ),
    )
    assert (plan.updates, plan.num_replicas, len(plan.devices_of(0))) == ("async", replicas, stages)
    return partitioner.place(model, plan)


def twins(build: Callable[[], keras.Model], replicas: int, stages: int = 1, **options: Any) -> tuple[Any, Any]:
    """The unplaced model, and an equal one placed in asynchronous replicas."""
    model, other = equal_pair(build)
    return model, placed_in(other, replicas, stages, **options)


def with_state() -> keras.Model:
    x = inputs = keras.Input((models.WIDTH,))
    x = layers.Dense(8, name="hidden")(x)
    x = models.Counts(name="counts")(layers.BatchNormalization(name="normalize")(x))
    x = layers.Dropout(0.3, seed=1, name="drop")(x)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))


def test_one_replica_trains_as_the_unplaced_model() -> None:
    """Statistics and random numbers too."""
    model, placed = twins(with_state, 1)
    x, y = models.vectors(37)
    with op_by_op():  # or rounding would differ
        expected, found = (
            one.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0).history for one in (model, placed)
        )
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5, err_msg=key)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    for mine, own in zip(variables(placed), [*model.variables, *model.optimizer.variables], strict=False):
        np.testing.assert_allclose(mine.numpy(), own.numpy(), rtol=1e-5, atol=1e-7, err_msg=own.path)
    assert placed.update_counts.staleness == {0: 6}


def test_gradients_of_embeddings_stay_sparse() -> None:
    """Adam moves the rows that a part looks up, no others."""
    model, placed = twins(lambda: models.compiled(embedded(), keras.optimizers.Adam(0.02)), 2, max_staleness=0)
    for step in range(2):
        x, y = tokens(step), np.arange(ROWS) % models.CLASSES
        placed.train_on_batch(x, y)
        for half in np.split(np.arange(ROWS), 2):
            model.train_on_batch(x[half], y[half])
    assert relative(weights(placed.model), weights(model)) < TOLERANCE


@pytest.fixture(scope="module")
def in_turns() -> tuple[Any, Any]:
    """A model and its twin in two replicas of two stages, with no staleness allowed, not yet trained."""
    return twins(models.mlp, 2, 2, max_staleness=0, microbatches=2)


def test_replicas_in_turns_train_as_one_device_on_their_parts(in_turns: tuple[Any, Any]) -> None:
    """Of 37 rows in batches of 16 the parts have 8, 8, 8, 8, 3 and 2 rows."""
    model, placed = in_turns
    x, y = models.vectors(37)
    losses = []
    for _ in range(2):
        total = 0.0
        for start, end in [(0, 8), (8, 16), (16, 24), (24, 32), (32, 35), (35, 37)]:
            total += (end - start) * model.train_on_batch(x[start:end], y[start:end], return_dict=True)["loss"]
        losses.append(total / 37)
    history = placed.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    assert placed.update_counts.num_updates == 12
    assert placed.update_counts.staleness == {0: 12}


def test_what_is_shared_is_saved_evaluated_and_kept_once(in_turns: tuple[Any, Any], tmp_path: Path) -> None:
    _, placed = in_turns
    x, y = models.vectors(40)
    before = placed.update_counts.num_updates
    results = placed.train_on_batch(x, y, return_dict=True)
    assert placed.update_counts.num_updates == before + 2
    assert results.keys() == placed.evaluate(x, y, return_dict=True, verbose=0).keys()
    first = placed.plan.devices_of(0)
    for variable in variables(placed):
        (only,) = each_copy(held_variable(variable))
        assert only.device in first, variable.path
    placed.save(tmp_path / "placed.keras")
    again: Any = keras.models.load_model(tmp_path / "placed.keras")
    assert weights(again).tobytes() == weights(placed.model).tobytes()
    assert placed.evaluate(x, y, verbose=0) == pytest.approx(again.evaluate(x, y, verbose=0), rel=1e-5)
    placed.set_weights([np.zeros_like(value) for value in placed.get_weights()])
    placed.optimizer.learning_rate = 0.0
    placed.fit(x, y, batch_size=ROWS, verbose=0)
    assert not np.any(weights(placed.model))  # replicas computed with what was assigned


def test_replicas_ahead_of_each_other_learn_and_lose_nothing(tmp_path: Path) -> None:
    model, placed = twins(with_state, 3)
    assert placed.plan.max_staleness == 12
    x, _ = models.vectors(480)
    y = np.argmax(x[:, : models.CLASSES], axis=1)
    seen: list[float] = []
    looks = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
    saves = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True)
    history = placed.fit(
        x, y, batch_size=ROWS, epochs=4, validation_data=(x, y), callbacks=[looks, saves], verbose=0
    ).history
    counts = placed.update_counts
    assert counts.num_updates == sum(counts.staleness.values()) == 4 * 30 * 3
    assert max(counts.staleness) <= 12
    assert int(placed.model.get_layer("counts").calls.value) == 4 * 30 * 3
    assert int(placed.optimizer.iterations.value) == 4 * 30 * 3
    model.fit(x, y, batch_size=ROWS // 3, epochs=4, verbose=0)
    alone = model.evaluate(x, y, return_dict=True, verbose=0)["loss"]
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert history["val_loss"][-1] == pytest.approx(alone, rel=0.25)
    assert len(seen) == 120 and all(np.isfinite(seen))
    assert history["val_loss"][-1] == pytest.approx(placed.evaluate(x, y, return_dict=True, verbose=0)["loss"])


def test_a_batch_that_fails_changes_nothing_and_the_next_fit_runs() -> None:
    """In turns, the first part of the third batch fails: what is applied is what came before, and no more."""
    keras.utils.set_random_seed(3)
    expected: Any = marked_model(stateful=False)
    placed = placed_in(keras.models.clone_model(expected), 2, max_staleness=0, loss=_scores(), optimizer="adam")
    expected.compile("adam", _scores(), jit_compile=False)
    placed.set_weights(expected.get_weights())
    batches = [marked(0), marked(0), marked(10), marked(0)]
    inputs, targets = zip(*batches, strict=True)
    x = {key: np.concatenate([one[key] for one in inputs]) for key in inputs[0]}
    y = np.concatenate(targets)
    for start in (0, 8, 16, 24):
        expected.train_on_batch({key: value[start : start + 8] for key, value in x.items()}, y[start : start + 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled"):
        placed.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    assert relative(weights(placed.model), weights(expected)) < TOLERANCE
    placed.fit(*marked(0), batch_size=ROWS, verbose=0)
    assert placed.update_counts.num_updates == 6


def _scores() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# -- plans -------------------------------------------------------------------------------------------------------------


def bound(max_staleness: int | None = None, **changed: Any) -> int:
    """The staleness of two asynchronous replicas, asked for with other values here and there."""
    given: dict[str, Any] = {"strategy": "mirrored", "devices": "CPU:0,CPU:1", "training": True, "replicas": "auto"}
    given |= changed
    return Request(
        step=Step(training=given["training"]),
        machine=Machine(devices=given["devices"]),
        strategy=given["strategy"],
        replicas=given["replicas"],
        parallelism=Parallelism(updates=AsyncUpdates(max_staleness=max_staleness)),
    ).max_staleness


def test_staleness_is_four_per_replica_or_what_is_asked_for() -> None:
    assert bound() == 8
    assert bound(max_staleness=0) == 0
    assert bound(max_staleness=3) == 3
    assert Request(machine=Machine(devices="CPU:0,CPU:1")).max_staleness == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_staleness": -1}, "expected at least 0"),
        ({"training": False}, "of training"),
        ({"strategy": "auto"}, "by how many replicas"),
        ({"strategy": "mixed", "replicas": (2, 1), "devices": "CPU:0-2"}, "cannot share devices"),
        ({"devices": "/job:worker/task:0/CPU:0,/job:worker/task:1/CPU:0"}, "is elsewhere"),
    ],
)
def test_what_cannot_be_had_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bound(**options)


def test_the_first_replica_holds_what_is_shared_and_the_others_no_slots() -> None:
    """Two devices that plan 100 of parameters, 200 of slots, 10 of state, 100 of gradients and 40 of activations."""

    def memory(device: str, headroom: int) -> DeviceMemory:
        return DeviceMemory(
            device=device,
            peak_seconds=0.0,
            parameter_bytes=100,
            slot_bytes=200,
            state_bytes=10,
            gradient_bytes=100,
            activation_bytes=40,
            headroom_bytes=headroom,
            reserved_bytes=0,
            over_time=(320, 450),
        )

    def stage(device: str, replica: int) -> Stage:
        return Stage(
            index=0,
            replica=replica,
            device=device,
            layers=(),
            num_ops=1,
            parameter_bytes=100,
            peak_bytes=450,
            compute_seconds=1.0,
            send_bytes=0,
        )

    def plan(headroom: int, *more: Stage) -> PlanDocument:
        return PlanDocument(
            model=ModelInfo(
                source="", name="", fingerprint="", num_ops=0, num_parameters=0, batch_size=2, training=True
            ),
            devices=(),
            strategy=Strategy.MIRRORED,
            num_replicas=2,
            num_stages=1,
            num_microbatches=1,
            schedule="sequential",
            updates="sync",
            placement={},
            baselines=(),
            solver=SolverInfo(status="feasible", objective=1, lower_bound=1, gap=0, seconds=0, seed=0),
            stages=(stage("CPU:0", 0), stage("CPU:1", 1), *more),
            memory=(memory("CPU:0", headroom), memory("CPU:1", headroom)),
            predicted=Predicted(
                step_seconds=1.0,
                latency_seconds=1.0,
                bottleneck_stage=0,
                bubble_fraction=0.0,
                peak_bytes={"CPU:0": 450, "CPU:1": 450},
            ),
            notes=("before",),
        )

    found = with_async_updates(plan(210), 5)
    # Parameters and state once more, and the gradients of another replica.
    assert found.predicted.peak_bytes == {"CPU:0": 450 + 100 + 10 + 100, "CPU:1": 250}
    assert [one.peak_bytes for one in found.stages] == [660, 250]
    assert [one.headroom_bytes for one in found.memory] == [0, 410]
    assert [one.over_time for one in found.memory] == [(530, 660), (120, 250)]
    assert (found.updates, found.max_staleness) == ("async", 5)
    with pytest.raises(InfeasibleError, match="do not fit"):
        with_async_updates(plan(209), 5)
    away = "/job:worker/task:0/CPU:0"
    remote = with_async_updates(plan(320, stage(away, 2)), 5)
    # What a replica in another process was sent and sends: parameters and state, or their gradients.
    assert remote.predicted.peak_bytes == {"CPU:0": 660 + 100 + 10, "CPU:1": 250}
    assert remote.memory[0].headroom_bytes == 0
