"""A model that runs in stages and microbatches must behave as if it did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from partitioner.emit.graph.function import emit_stepwise
from partitioner.emit.keras.placed_model import spec_of
from partitioner.errors import UsageError
from partitioner.ir.step import StepKind
from partitioner.stages.schedules import ScheduleKind
from partitioner.verification.audit import executed_ops
from tests import models
from tests.staged import bench
from tests.twins import as_one, cpus, equal_pair, losses, relative

ROWS = 16
EXACT = ["mlp", "cnn", "lstm", "tied", "dict_of_outputs", "two_towers", "siamese", "nested"]


def placed_over(build: Callable[[], keras.Model], num_devices: int, **options: Any) -> tuple[Any, Any]:
    """The unplaced model and its twin, placed in stages."""
    model, twin = equal_pair(build)
    plan = partitioner.plan(
        twin, **asked(devices=cpus(num_devices), batch_size=ROWS, time_limit=8, **{"strategy": "layer-split"} | options)
    )
    return model, partitioner.place(twin, plan)


def transformer_without_dropout() -> keras.Model:
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 8)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4, use_bias=False)(y, y)])
        y = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(8)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))


def resnet_without_normalization() -> keras.Model:
    inputs = keras.Input((models.SIDE, models.SIDE, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(3):
        y = layers.Conv2D(4, 3, padding="same")(layers.ReLU()(x))
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(x)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)), keras.optimizers.SGD(0.05))


def encoder_and_decoder() -> keras.Model:
    """Six blocks read what the encoder made; their gradients are added up along the stages."""
    inputs = keras.Input((models.WIDTH,))
    memory = layers.Dense(8, activation="relu")(layers.Dense(8, activation="relu")(inputs))
    x = layers.Dense(8)(inputs)
    for _ in range(6):
        x = layers.Add()([x, layers.Dense(8, activation="relu")(layers.Concatenate()([x, memory]))])
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))


CASES = {name: (models.MODELS[name], models.DATA[name]) for name in EXACT} | {
    "transformer": (transformer_without_dropout, models.sentences),
    "resnet": (resnet_without_normalization, models.images),
    "encoder_and_decoder": (encoder_and_decoder, models.vectors),
}


ONE_F_ONE_B = (2, {"microbatches": 4, "schedule": "1f1b", "recompute": "none"})
ZB_H1 = (3, {"microbatches": 8, "schedule": "zb-h1", "recompute": "none"})
GPIPE = (3, {"microbatches": 8, "schedule": "gpipe", "recompute": "all"})


@pytest.mark.parametrize(
    ("name", "num_devices", "options"),
    [
        *(pytest.param(name, *ONE_F_ONE_B, id=f"{name}-2x4-1f1b") for name in CASES),
        *(
            pytest.param(name, *ZB_H1, id=f"{name}-3x8-zb-h1")
            for name in ("cnn", "tied", "siamese", "encoder_and_decoder")
        ),
        # The others in `test_staged_grid.py`, by hand.
        *(pytest.param(name, *GPIPE, id=f"{name}-3x8-gpipe-recompute") for name in ("mlp", "cnn", "tied", "siamese")),
    ],
)
def test_ten_steps_equal_the_unplaced_models(name: str, num_devices: int, options: dict[str, Any]) -> None:
    build, data = CASES[name]
    model, placed = placed_over(build, num_devices, **options)
    assert placed.plan.num_microbatches == options["microbatches"]
    assert relative(losses(placed, data(ROWS), 10), losses(model, data(ROWS), 10)) < 1e-6
    verification = partitioner.verify(placed.model, placed, num_steps=2)
    assert verification.misplaced_ops == ()
    assert verification.passed, verification


def test_stages_that_run_cheap_ops_again_train_to_the_same_numbers_in_less_memory() -> None:
    model, twin = equal_pair(transformer_without_dropout)

    def planned(**options: Any) -> partitioner.Plan:
        fixed = {"strategy": "layer-split", "microbatches": 4, "schedule": "1f1b", "time_limit": 8}
        return partitioner.plan(twin, **asked(devices=cpus(2), batch_size=ROWS, **fixed, **options))

    most = max(planned(recompute="none").predicted.peak_bytes.values())
    plan = planned(memory_limit=int(0.7 * most))
    assert {stage.recompute_in_words for stage in plan.stages} == {"selective", "no"}
    placed = partitioner.place(twin, partitioner.Plan.from_json(plan.to_json()))
    batch = models.sentences(ROWS)
    assert relative(losses(placed, batch, 5), losses(model, batch, 5)) < 1e-6


@pytest.mark.parametrize("schedule", ["sequential", "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved"])
def test_every_schedule_trains_to_the_same_numbers(schedule: str) -> None:
    model, placed = placed_over(lambda: models.compiled(models.dense_stack(7)), 2, microbatches=4, schedule=schedule)
    assert placed.plan.schedule == schedule
    batch = models.vectors(ROWS)
    assert relative(losses(placed, batch, 10), losses(model, batch, 10)) < 1e-6


@pytest.mark.parametrize(("schedule", "num_stages"), [("zb-h1", 2), ("zb-v", 3)])
def test_replicas_of_stages_compute_gradients_of_weights_later(schedule: str, num_stages: int) -> None:
    options = {"strategy": "mixed", "replicas": 2, "microbatches": 4, "schedule": schedule}
    model, placed = placed_over(lambda: models.compiled(models.dense_stack(7)), 4, **options)
    assert (placed.plan.num_replicas, placed.plan.num_stages, placed.plan.schedule) == (2, num_stages, schedule)
    assert any(action.action.startswith("1W") for action in placed.plan.timeline)
    batch = models.vectors(ROWS)
    assert relative(losses(placed, batch, 10), losses(model, batch, 10)) < 1e-6


def clicks() -> keras.Model:
    """Pairs of embeddings and a score; the loss takes the logits before its sigmoid, which nothing else reads."""
    numbers, categories = keras.Input((4,)), keras.Input((6,), dtype="int32")
    parts = [layers.Dense(8, activation="relu")(layers.Dense(16, activation="relu")(numbers))]
    parts += [layers.Embedding(20 + index, 8)(categories[:, index]) for index in range(6)]
    stacked = keras.ops.stack(parts, axis=1)
    pairs = layers.Flatten()(keras.ops.matmul(stacked, keras.ops.transpose(stacked, (0, 2, 1))))
    x = layers.Dense(16, activation="relu")(layers.Concatenate()([pairs, parts[0]]))
    model = keras.Model([numbers, categories], layers.Dense(1, activation="sigmoid")(x))
    model.compile("adagrad", "binary_crossentropy")
    return model


def test_a_sigmoid_that_the_loss_looks_behind_is_in_no_stage() -> None:
    """Bug: whether a shape is at hand was asked of a sigmoid that is not run, and planning ended with a KeyError."""
    model, placed = placed_over(clicks, 3, microbatches=2)
    random = np.random.default_rng(0)
    x = [random.normal(size=(ROWS, 4)).astype("float32"), random.integers(0, 20, (ROWS, 6))]
    batch = x, random.integers(0, 2, (ROWS, 1)).astype("float32")
    assert relative(losses(placed, batch, 5), losses(model, batch, 5)) < 1e-6


def parallel_convolutions() -> keras.Model:
    x = inputs = keras.Input((models.SIDE, models.SIDE, 2))
    for _ in range(2):
        x = layers.Add()([layers.Conv2D(4, 3, padding="same", activation="tanh")(x) for _ in range(6)])
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(layers.Flatten()(x))))


def test_convolutions_next_to_each_other_do_not_end_the_process() -> None:
    """Bug: they waited for each other by control edges, with which TensorFlow merges no convolution with its bias."""
    model, placed = placed_over(parallel_convolutions, 2, microbatches=4, schedule="1f1b")
    batch = models.images(ROWS)
    assert relative(losses(placed, batch, 5), losses(model, batch, 5)) < 1e-6


@pytest.mark.parametrize("rows", [16, 13, 5, 3, 1])
def test_a_batch_of_any_size_is_cut_exactly(rows: int) -> None:
    model, placed = placed_over(models.mlp, 2, microbatches=4, schedule="1f1b")
    x, y = models.vectors(rows)
    assert relative(losses(placed, (x, y)), losses(model, (x, y))) < 1e-6
    np.testing.assert_allclose(placed.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-6)


def test_layers_that_see_the_whole_batch_are_named_and_keep_one_piece() -> None:
    model = models.resnet()
    plan = partitioner.plan(model, devices=["CPU:1", "CPU:2"], batch_size=ROWS, time_limit=4)
    assert plan.num_microbatches == 1
    assert any("batch_normalization" in note for note in plan.notes)


@pytest.mark.parametrize("microbatches", [ROWS + 1, 0, -1, "many"])
def test_a_wrong_number_of_microbatches_is_refused(microbatches: Any) -> None:
    with pytest.raises(UsageError, match="microbatches"):
        partitioner.plan(models.mlp(), devices=["CPU:1", "CPU:2"], batch_size=ROWS, microbatches=microbatches)


def test_a_loss_that_is_no_average_is_refused() -> None:
    model = models.mlp()
    model.compile("sgd", lambda y, p: keras.ops.square(keras.ops.sum(p)), jit_compile=False)
    with pytest.raises(UsageError, match="cannot be cut into microbatches"):
        partitioner.plan(model, devices=["CPU:1", "CPU:2"], batch_size=ROWS, microbatches=4)


def test_pooling_has_the_gradient_kernel_of_the_whole_graph() -> None:
    """Bug: cut off from its forward op, it ran without oneDNN, 17 times as long."""
    types = {}
    for microbatches in (1, 4):
        _, placed = placed_over(models.cnn, 2, microbatches=microbatches, schedule="sequential")
        x, y = models.images(ROWS)
        arguments = placed.program.standardize(StepKind.TRAIN, (tf.constant(x), tf.constant(y), None))
        specs = tf.nest.map_structure(spec_of, arguments)
        step = placed.program.step(StepKind.TRAIN, specs)
        stepwise = emit_stepwise(step, placed.program.execution(step), results=("loss",))
        _, executed = executed_ops(lambda run=stepwise, given=arguments: run(*given))
        types[microbatches] = {kind for name, (kind, _) in executed.items() if name.endswith("MaxPoolGrad")}
    assert types[1] == types[4]


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_four_interleaved_stages_on_each_device_train_to_the_same_numbers(name: str) -> None:
    made, stage_devices = bench(name), ScheduleKind.INTERLEAVED.stages_on(cpus(2), rounds=4)
    found = made.trained(made.placed(stage_devices, microbatches=4, schedule="interleaved", recompute=False))
    assert found.losses == pytest.approx(made.expected.losses, rel=1e-6)
    assert relative(as_one(found.weights), as_one(made.expected.weights)) < 1e-6
