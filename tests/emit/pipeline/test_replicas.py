"""Mirrored replicas of stages train as one device does on the whole batch, and keep the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from partitioner.emit.graph.mirrored_variable import each_copy
from partitioner.emit.graph.variables import held_variable
from partitioner.emit.pipeline import all_reduce, staged_step
from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import StepKind
from partitioner.verification.audit import misplaced_ops
from partitioner.verification.compare import tolerance_of_copies
from tests import models
from tests.embeddings import embedded, tokens
from tests.failing import marked, marked_model
from tests.staged import CASES, PARTS, ROWS, Bench, audited, bench
from tests.twins import as_one, cpus, equal_pair, relative, variables, weights

TOLERANCE = 1e-6


def placed_in(
    model: keras.Model,
    replicas: int,
    stages: int,
    *,
    microbatches: int | str = 1,
    batch_size: int = ROWS,
    **options: Any,
) -> Any:
    plan = partitioner.plan(
        model,
        **asked(
            devices=cpus(replicas * stages),
            batch_size=batch_size,
            strategy="mixed" if stages > 1 else "mirrored",
            replicas=replicas,
            microbatches=microbatches,
            time_limit=4,
            **options,
        ),
    )
    assert (plan.num_replicas, len(plan.devices_of(0))) == (replicas, stages)
    return partitioner.place(model, plan)


def twins(build: Callable[[], keras.Model], replicas: int, stages: int, **options: Any) -> tuple[keras.Model, Any]:
    """The unplaced model, and an equal one placed in replicas."""
    model, other = equal_pair(build)
    return model, placed_in(other, replicas, stages, **options)


def sharing_twins(build: Callable[[], keras.Model], sizes: tuple[int, ...], **options: Any) -> tuple[Any, Any]:
    """The unplaced model, and an equal one whose replicas share devices."""
    model, other = equal_pair(build)
    plan = partitioner.plan(
        other,
        **asked(devices=cpus(sum(sizes)), batch_size=ROWS, strategy="mixed", replicas=sizes, time_limit=4, **options),
    )
    assert (plan.num_replicas, len(plan.used_devices)) == (max(sizes), sum(sizes))
    return model, partitioner.place(other, plan)


def copies(variable: Any) -> list[np.ndarray]:
    return [copy.numpy() for copy in each_copy(held_variable(variable))]


def assert_identical(placed: Any) -> None:
    """Every variable has a copy in each replica, with the same bits."""
    for variable in variables(placed):
        found = copies(variable)
        assert len(found) == placed.plan.num_replicas, variable.path
        assert len({one.tobytes() for one in found}) == 1, variable.path
    assert placed.replicas_identical()


# -- the same numbers --------------------------------------------------------------------------------------------------

SHAPES = [(2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (3, 1), (2, 3)]
QUICK = {("mlp", (2, 1), 4), ("mlp", (2, 3), 1), ("cnn", (2, 2), 4), ("tied", (3, 1), 1)}
# Devices that do the same, for each device of a replica.
SHARED = [(2, 1), (1, 2), (3, 1), (2, 1, 1), (4, 2)]
QUICK_SHARED = {("mlp", (2, 1), 4), ("mlp", (4, 2), 1), ("cnn", (1, 2), 4), ("tied", (3, 1), 1)}


def cases(shapes: Sequence[tuple[int, ...]], quick: set[Any], joint: str) -> list[Any]:
    """Every model in every shape, in one and in four microbatches; those that are not quick belong to the grid."""
    return [
        pytest.param(
            *case,
            id=f"{case[0]}-{joint.join(map(str, case[1]))}-{case[2]}",
            marks=() if case in quick else pytest.mark.grid,
        )
        for case in product(CASES, shapes, [1, 4])
    ]


def planned(made: Bench, sizes: Sequence[int], microbatches: int) -> PlanDocument:
    """The parts of the model dealt to the devices of the first replica in equal runs.

    So many devices do what each of these does: consecutive replicas if all are as many, else those in turns.
    """
    is_even = len(set(sizes)) == 1
    first = [place if is_even else sum(sizes[:place]) for place in range(len(sizes))]
    pins = {f"p{part}_.*": f"CPU:{first[part * len(sizes) // PARTS] + 1}" for part in range(PARTS)}
    return partitioner.plan(
        made.twin,
        **asked(
            devices=cpus(sum(sizes)),
            batch_size=ROWS,
            strategy="mixed",
            replicas=sizes[0] if is_even else sizes,
            microbatches=microbatches,
            schedule="1f1b" if microbatches > 1 else "auto",
            recompute="none",
            pins=pins | {"compile_loss/.*": f"CPU:{first[-1] + 1}"},
            time_limit=8,
        ),
    )


@pytest.mark.parametrize(
    ("name", "shape", "microbatches"),
    cases(SHAPES, QUICK, "x"),
)
def test_ten_steps_equal_one_devices_on_the_whole_batch(name: str, shape: tuple[int, int], microbatches: int) -> None:
    plan, placed = trained_as_on_one_device(name, (shape[0],) * shape[1], microbatches)
    assert (plan.num_replicas, len(plan.devices_of(0)), plan.num_microbatches) == (*shape, microbatches)
    assert_identical(placed)


@pytest.mark.parametrize(
    ("name", "sizes", "microbatches"),
    cases(SHARED, QUICK_SHARED, "-"),
)
def test_replicas_that_share_devices_train_as_one_device_does(
    name: str, sizes: tuple[int, ...], microbatches: int
) -> None:
    plan, placed = trained_as_on_one_device(name, sizes, microbatches)
    assert (plan.num_replicas, plan.num_microbatches) == (max(sizes), microbatches)
    assert len(plan.used_devices) == sum(sizes)
    assert placed.replicas_identical()
    # A device holds its own stage's variables, once, whoever uses it.
    homes = [plan.devices_of(replica) for replica in range(plan.num_replicas)]
    twins_of = {device: list(dict.fromkeys(same)) for same in zip(*homes, strict=True) for device in same}
    for variable in variables(placed):
        held = [copy.device for copy in each_copy(held_variable(variable))]
        assert held == twins_of[held[0]], variable.path


def trained_as_on_one_device(name: str, sizes: Sequence[int], microbatches: int) -> tuple[PlanDocument, Any]:
    """The plan and the placed model after ten steps that gave what one device does, every op on its device."""
    made = bench(name)
    for variable, value in zip(made.held, made.start, strict=True):
        variable.assign(value)
    plan = planned(made, sizes, microbatches)
    placed = partitioner.place(made.twin, plan)
    found = made.trained(placed)

    for loss, reference in zip(found.losses, made.expected.losses, strict=True):
        assert loss == pytest.approx(reference, rel=TOLERANCE)
    assert relative(as_one(found.weights), as_one(made.expected.weights)) < TOLERANCE

    _, execution, executed = audited(placed, made.data)
    compared, misplaced = misplaced_ops(executed, execution.placement_everywhere)
    assert misplaced == ()
    assert compared > plan.num_replicas * len(plan.placement) / 4
    for replica in range(1, plan.num_replicas):
        planned_ops = executed.keys() & execution.placement_everywhere.keys()
        ran = {executed[op][1] for op in planned_ops if op.startswith(f"replica_{replica}/")}
        assert ran == set(plan.devices_of(replica))
    return plan, placed


def test_mirrored_strategy_gives_the_same_weights() -> None:
    x, y = models.vectors(ROWS)
    model, placed = twins(models.mlp, 2, 1)
    strategy = tf.distribute.MirroredStrategy(cpus(2))
    with strategy.scope():
        mirrored = models.compiled(models.dense_stack())
    mirrored.set_weights(model.get_weights())
    batches = tf.data.Dataset.from_tensors((x, y)).repeat(10)
    mirrored.fit(batches, epochs=1, steps_per_epoch=10, verbose=0)
    placed.fit(batches, epochs=1, steps_per_epoch=10, verbose=0)
    assert relative(weights(placed.model), weights(mirrored)) < TOLERANCE


OPTIMIZERS = {
    name: lambda made=made: models.compiled(models.dense_stack(), made()) for name, made in models.optimizers().items()
} | {"float16": models.float16}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("adamw-global-clipnorm", "ema", "float16") else pytest.mark.grid)
        for name in OPTIMIZERS
    ],
)
def test_every_kind_of_optimizer_updates_all_copies(name: str) -> None:
    model, placed = twins(OPTIMIZERS[name], 2, 2, microbatches=2)
    x, y = models.vectors(ROWS)
    for _ in range(6):
        model.train_on_batch(x, y)
        placed.train_on_batch(x, y)
    # Activations of 16 bits differ in their last bits when rows are multiplied in other blocks.
    assert relative(weights(placed.model), weights(model)) < (1e-3 if name == "float16" else TOLERANCE)
    assert placed.replicas_identical()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("adamw-global-clipnorm", "float16") else pytest.mark.grid)
        for name in OPTIMIZERS
    ],
)
def test_every_kind_of_optimizer_updates_once_what_replicas_share(name: str) -> None:
    model, placed = sharing_twins(OPTIMIZERS[name], (2, 1), microbatches=2)
    x, y = models.vectors(ROWS)
    for _ in range(6):
        model.train_on_batch(x, y)
        placed.train_on_batch(x, y)
    assert relative(weights(placed.model), weights(model)) < (1e-3 if name == "float16" else TOLERANCE)
    assert placed.replicas_identical()


def test_sparse_gradients_and_batches_of_any_size_where_replicas_share_devices() -> None:
    model, placed = sharing_twins(
        lambda: models.compiled(embedded(), keras.optimizers.Adam(0.02, clipnorm=0.05)), (1, 3), microbatches=2
    )
    for step, rows in enumerate((ROWS, ROWS, 5)):
        for one in (model, placed):
            one.train_on_batch(tokens(step)[:rows], np.arange(rows) % models.CLASSES)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    assert placed.replicas_identical()


def test_batches_of_any_size_are_cut_exactly() -> None:
    """Of 37 rows the last batch has 5, fewer than parts."""
    model, placed = twins(models.mlp, 3, 1, microbatches=2)
    x, y = models.vectors(37)
    expected, found = (
        one.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0).history for one in (model, placed)
    )
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5, err_msg=key)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    assert_identical(placed)
    np.testing.assert_allclose(placed.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-6)
    assert placed.evaluate(x, y, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)


def test_gradients_of_embeddings_stay_sparse() -> None:
    """Adam moves the rows that some replica looks up, no others, and counts a row looked up in two of them once."""
    model, placed = twins(
        lambda: models.compiled(embedded(), keras.optimizers.Adam(0.02, clipnorm=0.05)), 2, 2, microbatches=2
    )
    for step in range(4):
        for one in (model, placed):
            one.train_on_batch(tokens(step), np.arange(ROWS) % models.CLASSES)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    assert_identical(placed)


def test_gradients_summed_in_pieces_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between devices that do not share memory: several gradients go in one message, and that in pieces."""
    x, y = models.vectors(ROWS)
    model, placed = twins(models.mlp, 3, 1)
    _, in_pieces = twins(models.mlp, 3, 1)
    placed.train_on_batch(x, y)
    for module in (all_reduce, staged_step):
        monkeypatch.setattr(module, "share_memory", lambda devices: False)
    monkeypatch.setattr(all_reduce, "_LEAST_CUT_BYTES", 0)
    in_pieces.train_on_batch(x, y)
    model.train_on_batch(x, y)
    assert weights(in_pieces.model).tobytes() == weights(placed.model).tobytes()
    assert relative(weights(in_pieces.model), weights(model)) < TOLERANCE
    assert_identical(in_pieces)


def test_gradients_summed_within_processes_first_are_the_same_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between two processes of two replicas each."""

    def halves(names: Sequence[str]) -> list[list[int]]:
        places = list(range(len(names)))
        return [places[:2], places[2:]] if len(names) == 4 else [places]

    x, y = models.vectors(ROWS)
    model, placed = twins(models.mlp, 4, 1, microbatches=2)
    monkeypatch.setattr(all_reduce, "equal_hosts", halves)
    monkeypatch.setattr(all_reduce, "share_memory", lambda devices: False)
    monkeypatch.setattr(all_reduce, "_LEAST_CUT_BYTES", 0)
    for one in (model, placed):
        for _ in range(3):
            one.train_on_batch(x, y)
    assert relative(weights(placed.model), weights(model)) < TOLERANCE
    assert_identical(placed)


# -- state -------------------------------------------------------------------------------------------------------------


def test_moving_averages_are_the_mean_over_replicas() -> None:
    """By hand: each replica moves by a hundredth of the way to the statistics of its own rows."""

    def build() -> keras.Model:
        x = inputs = keras.Input((models.WIDTH,))
        x = layers.BatchNormalization(name="normalize")(x)
        return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)), "sgd")

    _, placed = twins(build, 2, 1)
    assert any("normalize" in note and "mean" in note for note in placed.plan.notes)
    x, y = models.vectors(ROWS)
    placed.train_on_batch(x, y)
    halves = x[: ROWS // 2], x[ROWS // 2 :]
    layer = placed.model.get_layer("normalize")
    mean = 0.01 * np.mean([half.mean(axis=0) for half in halves], axis=0)
    variance = 0.99 + 0.01 * np.mean([half.var(axis=0) for half in halves], axis=0)
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-4)
    assert_identical(placed)


def test_state_is_the_same_whether_replicas_share_its_device_or_not(tmp_path: Path) -> None:
    """Moving averages, random state, and what is saved of both."""

    def build() -> keras.Model:
        x = inputs = keras.Input((models.WIDTH,))
        for index in range(2):
            x = layers.BatchNormalization(name=f"normalize{index}")(layers.Dense(models.WIDTH)(x))
            x = layers.Dropout(0.5, seed=index)(x)
        return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)), "sgd")

    _, apart = twins(build, 2, 2, microbatches=2)
    model, shared = sharing_twins(build, (2, 1), microbatches=2)
    x, y = models.vectors(ROWS)
    for _ in range(3):
        for placed in (apart, shared):
            placed.train_on_batch(x, y)
    assert relative(weights(shared.model), weights(apart.model)) < TOLERANCE
    assert shared.replicas_identical()
    shared.model.save_weights(tmp_path / "one.weights.h5")
    model.load_weights(tmp_path / "one.weights.h5")
    assert weights(model).tobytes() == weights(shared.model).tobytes()


def test_replicas_drop_other_units_and_count_alike() -> None:
    def build() -> keras.Model:
        x = inputs = keras.Input((models.WIDTH,))
        x = layers.Dropout(0.5, seed=1, name="drop")(models.Counts(name="counts")(x))
        return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)), "sgd")

    model, placed = twins(build, 2, 1)
    assert "unlike on one device, random numbers differ between replicas (drop)" in placed.plan.notes
    x, y = np.ones((ROWS, models.WIDTH), np.float32), np.zeros(ROWS, np.int32)
    results = placed._run(StepKind.TRAIN, tf.constant(x), tf.constant(y, tf.int64))
    first, second = np.split(results["y_pred"].numpy(), 2)
    assert not np.allclose(first, second)
    assert int(placed.model.get_layer("counts").calls.value) == 1
    for one in (model, placed):
        one.train_on_batch(x, y)
    assert_identical(placed)
    # Random state goes on as if one device had drawn for the first replica's rows.
    seeds = [one.get_layer("drop").seed_generator.state.numpy() for one in (model, placed.model)]
    assert (seeds[1] - seeds[0]).tolist() == [0, 1]  # one step more was run


@pytest.mark.parametrize("name", ["resnet", "subclassed"])
def test_verification_takes_statistics_and_random_numbers_as_replicas_do(name: str) -> None:
    keras.utils.set_random_seed(3)
    model = models.MODELS[name]()
    shape = {"input_shape": (models.WIDTH,)} if name == "subclassed" else {}
    placed = placed_in(model, 2, 1, **shape)
    verification = partitioner.verify(model, placed, num_steps=2)
    assert verification.misplaced_ops == ()
    assert verification.passed, verification
    assert_identical(placed)


def test_a_device_holds_its_stages_variables_only() -> None:
    _, placed = twins(models.mlp, 2, 2, microbatches=2)
    x, y = models.vectors(ROWS)
    placed.train_on_batch(x, y)
    held: dict[str, int] = {}
    for stage in placed.plan.stages:
        for name in stage.layers:
            if name.startswith("compile_loss"):
                continue
            for variable in placed.model.get_layer(name).variables:
                home = each_copy(held_variable(variable))[stage.replica].device
                assert home == stage.device, (variable.path, short_name(home))
                held[home] = held.get(home, 0) + 4 * variable.shape.num_elements()
    assert held == {stage.device: stage.parameter_bytes for stage in placed.plan.stages}
    slots = {
        v.path: [copy.device for copy in each_copy(held_variable(v))]
        for v in placed.optimizer.variables
        if v.path.endswith(("momentum", "velocity"))
    }
    assert len(slots) == 2 * len(placed.model.trainable_variables)
    for variable in placed.model.trainable_variables:
        own = [copy.device for copy in each_copy(held_variable(variable))]
        mine = [homes for path, homes in slots.items() if variable.path.replace("/", "_") in path]
        assert mine == [own, own], variable.path


def test_a_step_that_fails_leaves_all_copies_as_they_were() -> None:
    """The row that fails is one of the second replica's; the first one has nothing to complain of."""
    keras.utils.set_random_seed(3)
    placed = placed_in(
        marked_model(stateful=True),
        2,
        3,
        microbatches=2,
        schedule="1f1b",
        pins={f"stage_{stage}_.*": f"CPU:{stage + 1}" for stage in range(3)},
    )
    placed.train_on_batch(*marked(0))
    before = [copies(variable) for variable in variables(placed)]
    for mark, microbatch in [(10, 3), (20, 2), (22, 0)]:
        with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled") as raised:
            placed.train_on_batch(*marked(mark, microbatch))
        assert ("Detected at node replica_1/" in str(raised.value)) == (microbatch > 1)
        for variable, values in zip(variables(placed), before, strict=True):
            for value, found in zip(values, copies(variable), strict=True):
                np.testing.assert_array_equal(found, value, err_msg=variable.path)
    placed.train_on_batch(*marked(0))
    assert_identical(placed)
    assert not np.array_equal(copies(placed.model.trainable_variables[0])[1], before[0][1])


# -- Keras -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> tuple[keras.Model, Any]:
    """An unplaced model and its twin in two replicas, trained for a step."""
    model, placed = twins(models.mlp, 2, 1)
    for one in (model, placed):
        one.train_on_batch(*models.vectors(ROWS))
    return model, placed


def test_what_is_assigned_reaches_all_copies(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    model, placed = pair
    x, y = models.vectors(ROWS)
    start = model.get_weights()
    model.save_weights(tmp_path / "start.weights.h5")
    for bring_back in (
        lambda: placed.set_weights(start),
        lambda: placed.load_weights(tmp_path / "start.weights.h5"),
        lambda: [v.assign(value) for v, value in zip(placed.model.weights, start, strict=True)],
    ):
        placed.train_on_batch(x, y)
        assert weights(placed.model).tobytes() != as_one(start).tobytes()
        bring_back()
        assert weights(placed.model).tobytes() == as_one(start).tobytes()
        assert_identical(placed)
    for one in (model, placed):
        one.optimizer.learning_rate = 0.125
    assert [float(value) for value in copies(placed.optimizer._learning_rate)] == [0.125, 0.125]
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))
    placed.fit(x, y, epochs=2, verbose=0, callbacks=[schedule])
    assert {float(value) for value in copies(placed.optimizer._learning_rate)} == {np.float32(0.005)}
    assert_identical(placed)


def test_a_checkpoint_is_restored_into_all_copies(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    _, placed = pair
    checkpoint = tf.train.Checkpoint(model=placed.model)
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    saved = weights(placed.model)
    placed.train_on_batch(*models.vectors(ROWS))
    checkpoint.restore(path).assert_existing_objects_matched()
    assert weights(placed.model).tobytes() == saved.tobytes()
    assert_identical(placed)


def test_keras_files_hold_one_copy(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    model, placed = pair
    placed.save(tmp_path / "placed.keras")
    model.save(tmp_path / "model.keras")
    sizes = [(tmp_path / name).stat().st_size for name in ("placed.keras", "model.keras")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    again: Any = keras.models.load_model(tmp_path / "placed.keras")
    assert weights(again).tobytes() == weights(placed.model).tobytes()


def test_a_written_model_trains_on_in_all_replicas(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    _, placed = pair
    x, y = models.vectors(ROWS)
    placed.export(tmp_path / "placed")
    plain: Any = tf.saved_model.load(str(tmp_path / "placed"))
    np.testing.assert_array_equal(plain.predict(tf.constant(x)), placed.predict(x, verbose=0))
    loaded = partitioner.load(tmp_path / "placed")
    steps = [
        lambda: float(plain.train_step(tf.constant(x), tf.constant(y, tf.int32))["loss"]),
        lambda: loaded.train_on_batch(x, y, return_dict=True)["loss"],
        lambda: placed.train_on_batch(x, y, return_dict=True)["loss"],
    ]
    losses = [[step() for _ in range(3)] for step in steps]
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-6)
    np.testing.assert_allclose(losses[1], losses[2], rtol=1e-6)
    assert loaded.replicas_identical()
    loaded.set_weights([np.zeros_like(value) for value in loaded.get_weights()])
    assert loaded.replicas_identical()
    assert not np.any(loaded.predict(x, verbose=0))


def test_a_copy_that_differs_is_named(pair: tuple[keras.Model, Any]) -> None:
    _, placed = pair
    variable = placed.model.get_layer("hidden_1").kernel
    first, other = each_copy(held_variable(variable))
    other.assign_add(np.float32(1e-3) * tf.ones_like(other))
    assert placed.differing_variables() == placed.differing_variables(1e-5) == [variable.path]
    variable.assign(first)
    assert placed.replicas_identical()


def test_copies_that_differ_by_rounding_pass_where_gpus_sum_in_no_fixed_order(pair: tuple[keras.Model, Any]) -> None:
    """Bug: on a GPU, replicas of a model with an embedding were said to differ."""
    _, placed = pair
    variable = placed.model.get_layer("hidden_1").kernel
    first, other = each_copy(held_variable(variable))
    other.assign(np.nextafter(other.numpy(), np.inf))
    assert placed.differing_variables() == [variable.path]
    assert placed.differing_variables(tolerance_of_copies({"GPU:0": "GPU:0"})) == []
    assert tolerance_of_copies({"GPU:0": "CPU:1"}) == 0.0
    variable.assign(first)


def test_a_model_placed_in_replicas_can_be_placed_on_one_device_again() -> None:
    model, placed = twins(models.mlp, 2, 1)
    plan = partitioner.plan(
        placed.model, devices=["CPU:1", "CPU:2"], batch_size=ROWS, strategy="layer-split", microbatches=1, time_limit=2
    )
    again = partitioner.place(placed.model, plan)
    for one in (model, again):
        one.train_on_batch(*models.vectors(ROWS))
    assert all(len(copies(variable)) == 1 for variable in variables(again))
    assert relative(weights(again.model), weights(model)) < TOLERANCE


def test_inference_is_cut_over_replicas() -> None:
    keras.utils.set_random_seed(3)
    model = models.mlp()
    x, _ = models.vectors(10)
    expected = model.predict(x, verbose=0)
    placed = placed_in(model, 2, 1, training=False)
    np.testing.assert_allclose(placed.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert len({stage.device for stage in placed.plan.stages}) == 2


# -- what cannot be had ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_average_is_refused() -> None:
    model = models.mlp()
    model.compile("sgd", lambda y, p: keras.ops.square(keras.ops.sum(p)), jit_compile=False)
    with pytest.raises(UsageError, match=r"(?s)cannot be cut into replicas.*strategy='auto' without"):
        placed_in(model, 2, 1)
