"""What people do with a Keras model they do with a placed one: the same calls give the same numbers.

Each habit is a function of a model; its result is compared between a model and its placed twin.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import partitioner
from tests.twins import cpus, equal_pair

pytestmark = pytest.mark.usefixtures("optimized_alike")

ROWS = 16
COUNT = 40  # the last batch is a part of one


def build() -> keras.Model:
    x = inputs = keras.Input((12,), name="features")
    x = layers.Dense(24, activation="relu", name="first")(x)
    x = layers.BatchNormalization(name="normed")(x)
    x = layers.Dense(24, activation="gelu", name="second")(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="chance")(x), name="habits")
    compiled(model)
    return model


def compiled(model: Any, **options: Any) -> None:
    settings = {"optimizer": keras.optimizers.Adam(0.01), "loss": "binary_crossentropy", "metrics": ["AUC", "mae"]}
    model.compile(**{**settings, **options})


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(COUNT, 12)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def fitted(model: Any, *arguments: Any, **options: Any) -> dict[str, list[float]]:
    given = arguments or data()
    settings = {"epochs": 2, "shuffle": False, "verbose": 0}
    if not (arguments and len(arguments) == 1):
        settings["batch_size"] = ROWS
    return model.fit(*given, **{**settings, **options}).history


def weights_of(model: Any) -> list[np.ndarray]:
    return [variable.numpy() for variable in [*model.weights, *model.optimizer.variables]]


def with_batches(model: Any) -> Any:
    return fitted(model, tf.data.Dataset.from_tensor_slices(data()).batch(ROWS))


def with_a_generator(model: Any) -> Any:
    def batches() -> Iterator[Any]:
        x, y = data()
        while True:
            for start in range(0, COUNT, ROWS):
                yield x[start : start + ROWS], y[start : start + ROWS]

    return fitted(model, batches(), steps_per_epoch=3)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return math.ceil(COUNT / ROWS)

    def __getitem__(self, index: int) -> Any:
        x, y = data()
        return x[index * ROWS : (index + 1) * ROWS], y[index * ROWS : (index + 1) * ROWS]


def with_sample_weights(model: Any) -> Any:
    weights = np.linspace(0.5, 2.0, COUNT).astype("float32")
    return fitted(model, sample_weight=weights), model.evaluate(*data(), sample_weight=weights, verbose=0)


def with_weighted_metrics(model: Any) -> Any:
    compiled(model, weighted_metrics=["mse"])
    return fitted(model, sample_weight=np.linspace(0.5, 2.0, COUNT).astype("float32"))


def with_early_stopping(model: Any) -> Any:
    stop = keras.callbacks.EarlyStopping("val_AUC", patience=1, restore_best_weights=True)
    return fitted(model, validation_data=data(), epochs=6, callbacks=[stop]), stop.stopped_epoch


def with_schedules(model: Any) -> Any:
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    ]
    return fitted(model, callbacks=callbacks, epochs=3), float(model.optimizer.learning_rate)


def with_averaged_weights(model: Any) -> Any:
    """The swap of EMA weights: it once differed in the last digit."""
    compiled(model, optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return fitted(model, validation_data=data(), callbacks=[swap]), weights_of(model)


def on_single_batches(model: Any) -> Any:
    x, y = data()
    trained = [model.train_on_batch(x[:ROWS], y[:ROWS], return_dict=True) for _ in range(3)]
    return trained, model.test_on_batch(x[:5], y[:5], return_dict=True), model.predict_on_batch(x[:7])


def with_class_weights(model: Any) -> Any:
    return fitted(model, class_weight={0: 0.5, 1: 2.0})


def with_a_frozen_layer(model: Any) -> Any:
    fitted(model)
    model.get_layer("first").trainable = False
    compiled(model)
    before = model.get_layer("first").get_weights()
    history = fitted(model)
    np.testing.assert_array_equal(before[0], model.get_layer("first").get_weights()[0])
    return history, len(model.trainable_variables)


def with_other_batch_sizes(model: Any) -> Any:
    return fitted(model, batch_size=5), fitted(model, batch_size=COUNT), model.predict(data()[0], verbose=0)


def with_steps_per_execution(model: Any) -> Any:
    compiled(model, steps_per_execution=2)
    return fitted(model)


def as_it_describes_itself(model: Any) -> Any:
    lines: list[str] = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    named = [layer.name for layer in model.layers], [layer.name for layer in model.layers if layer.get_weights()]
    shapes = model.input_shape, model.output_shape, [tensor.name for tensor in model.inputs], len(model.outputs)
    return (
        named,
        shapes,
        model.count_params(),
        keras.models.model_from_json(model.to_json()).get_config(),
        "chance" in "".join(lines),
    )


def as_a_copy(model: Any) -> Any:
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    return type(other).__name__, other.predict(data()[0], verbose=0)


def features_of_a_layer(model: Any) -> Any:
    return keras.Model(model.inputs, model.get_layer("second").output).predict(data()[0], verbose=0)


HABITS: dict[str, Callable[[Any], Any]] = {
    "arrays": fitted,
    "tf.data": with_batches,
    "generator": with_a_generator,
    "PyDataset": lambda model: fitted(model, Batches()),
    "validation_data": lambda model: fitted(model, validation_data=data()),
    "validation_split": lambda model: fitted(model, validation_split=0.25),
    "initial_epoch": lambda model: fitted(model, epochs=4, initial_epoch=2),
    "steps_per_epoch": lambda model: fitted(model, steps_per_epoch=2),
    "sample_weight": with_sample_weights,
    "weighted_metrics": with_weighted_metrics,
    "class_weight": with_class_weights,
    "early stopping": with_early_stopping,
    "schedules": with_schedules,
    "averaged weights": with_averaged_weights,
    "on_batch": on_single_batches,
    "frozen layer": with_a_frozen_layer,
    "other batch sizes": with_other_batch_sizes,
    "steps_per_execution": with_steps_per_execution,
    "descriptions": as_it_describes_itself,
    "clone": as_a_copy,
    "features": features_of_a_layer,
}


@pytest.fixture(scope="module")
def plan() -> partitioner.Plan:
    made = partitioner.plan(build(), cpus(2), batch_size=ROWS, strategy="layer-split", time_limit=1)
    assert len(set(made.placement.values())) == 2
    return made


@pytest.fixture
def pair(plan: partitioner.Plan) -> tuple[keras.Model, Any]:
    plain, other = equal_pair(build)
    return plain, partitioner.place(other, plan)


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS)
def test_a_habit_gives_the_same(pair: tuple[keras.Model, Any], habit: Callable[[Any], Any]) -> None:
    plain, placed = pair
    same(habit(placed), habit(plain))
    same(placed.get_weights(), plain.get_weights())


def same(given: Any, expected: Any) -> None:
    """Equal structures; numbers equal but for the last digit: of a batch of known size, Keras divides by a constant."""
    if isinstance(expected, dict):
        assert given.keys() == expected.keys()
        given, expected = list(given.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(given) == len(expected)
        for one, other in zip(given, expected, strict=True):
            same(one, other)
    elif isinstance(expected, (np.ndarray, float)):
        np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-7)
    else:
        assert given == expected


def test_checkpoints_follow_a_metric_whose_direction_it_knows(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    """`val_AUC`: the direction is that of the metric object, to which `placed.metrics` must lead."""
    best = []
    for model, name in zip(pair, ("plain", "placed"), strict=True):
        path = tmp_path / f"{name}.weights.h5"
        keep = keras.callbacks.ModelCheckpoint(path, "val_AUC", save_best_only=True, save_weights_only=True)
        fitted(model, validation_data=data(), callbacks=[keep])
        assert keep.monitor_op is np.greater or keep.monitor_op.__name__ == "greater"
        best.append(keep.best)
        model.load_weights(path)
    assert best[0] == best[1]
    same(pair[1].get_weights(), pair[0].get_weights())


def test_training_goes_on_after_a_backup(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    histories = []
    for model, name in zip(pair, ("plain", "placed"), strict=True):
        with pytest.raises(KeyboardInterrupt):
            fitted(model, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / name), Stop()])
        histories.append(fitted(model, epochs=3, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / name)]))
    same(histories[1], histories[0])


def test_weights_and_models_are_exchanged(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    plain, placed = pair
    fitted(placed)
    placed.save(tmp_path / "whole.keras")
    whole = keras.models.load_model(tmp_path / "whole.keras")
    placed.save_weights(tmp_path / "some.weights.h5")
    plain.load_weights(tmp_path / "some.weights.h5")
    same(plain.predict(data()[0], verbose=0), placed.predict(data()[0], verbose=0))
    same(fitted(whole), fitted(placed))


def test_logs_are_written(pair: tuple[keras.Model, Any], tmp_path: Path) -> None:
    texts = []
    for model, name in zip(pair, ("plain", "placed"), strict=True):
        callbacks = [
            keras.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            keras.callbacks.TensorBoard(tmp_path / name, histogram_freq=1, write_graph=False, update_freq=1),
        ]
        fitted(model, validation_data=data(), callbacks=callbacks)
        texts.append((tmp_path / f"{name}.csv").read_text())
        assert list((tmp_path / name / "train").iterdir())
    assert texts[0] == texts[1]


def test_a_model_without_trainable_variables_fits() -> None:
    def still() -> keras.Model:
        model = keras.Sequential([keras.Input((12,)), layers.Rescaling(2.0), layers.UnitNormalization()])
        model.compile("sgd", "mse")
        return model

    plain, other = equal_pair(still)
    placed = partitioner.auto_place(other, cpus(2), batch_size=ROWS)
    x, _ = data()
    same(fitted(placed, x, x), fitted(plain, x, x))


class Reporting(layers.Layer):
    def call(self, x: Any) -> Any:
        tf.summary.scalar("largest", tf.reduce_max(x))
        return x + 1.0


@pytest.mark.parametrize("device", cpus(2))
def test_summaries_inside_call_are_written(tmp_path: Path, device: str) -> None:
    """`tf.summary` adds ops only while a writer is in force, and there is none when a model is planned."""
    model = keras.Sequential([keras.Input((12,)), layers.Dense(4), Reporting(name="reporting"), layers.Dense(1)])
    model.compile("sgd", "mse")
    constraints = partitioner.Constraints(pins={"reporting": device})
    placed = partitioner.auto_place(
        model, cpus(2), batch_size=ROWS, strategy="layer-split", time_limit=10, constraints=constraints
    )
    fitted(placed, callbacks=[keras.callbacks.TensorBoard(tmp_path, update_freq=1)])
    records = b"".join(path.read_bytes() for path in (tmp_path / "train").iterdir())
    assert b"/largest" in records


def test_a_step_of_arrays_in_a_loop_of_ones_own(pair: tuple[keras.Model, Any]) -> None:
    """`train_step` is what replaces a `GradientTape`: it takes what `fit` takes, and within a `tf.function` tensors."""
    x, y = (array[:ROWS] for array in data())
    plain, placed = pair
    for step in (placed.train_step, tf.function(lambda both: placed.train_step(both))):
        expected = {name: float(value) for name, value in plain.train_step((tf.constant(x), tf.constant(y))).items()}
        same({name: float(value) for name, value in step((x, y)).items()}, expected)
    same(float(placed.test_step((x.astype("float64"), y))["loss"]), float(plain.test_step((x, y))["loss"]))
    same(placed.get_weights(), plain.get_weights())


def test_an_error_within_a_call_keeps_its_way_out(pair: tuple[keras.Model, Any]) -> None:
    """Keras raises another error in its place, with the first argument of ours."""
    with pytest.raises(partitioner.PartitionError, match=r"help: use fit\(\), train_on_batch\(\) or train_step\(\)"):
        pair[1](data()[0], training=True)


def test_another_batch_size_than_the_planned_is_warned_of_once(pair: tuple[keras.Model, Any]) -> None:
    with pytest.warns(UserWarning, match="batches have 5 rows, and the plan is for 16"):
        fitted(pair[1], batch_size=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fitted(pair[1], batch_size=7)
