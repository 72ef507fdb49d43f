"""A placed model is the unplaced one, but for where it runs: same history, numbers, files and callbacks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from asking import asked

import partitioner
from partitioner.ir.devices import DeviceName
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import StepKind

pytestmark = pytest.mark.usefixtures("optimized_alike")

ROWS, BATCH = 100, 32  # the last batch is a partial one
# Relative: float32 has 24 bits. A bfloat16 result has 8, and where its sums are cut decides the last of them.
TOLERANCES = {"bfloat16": 2e-2}
TOLERANCE = 1e-6


def fresh(build: Callable[[], keras.Model]) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    return build()


def planned(model: keras.Model, data: Callable[[int], Any], devices: list[str], **options: Any) -> PlanDocument:
    x, y = data(8)
    return partitioner.plan(
        model, **asked(devices=devices, batch_size=8, example_inputs=x, example_targets=y, time_limit=5, **options)
    )


def layer_split(model: keras.Model, data: Callable[[int], Any], devices: list[str]) -> PlanDocument:
    return planned(model, data, devices, strategy="layer-split")


def round_robin(plan: PlanDocument) -> PlanDocument:
    """The most hostile placement: every op on another device than the op before it."""
    names = [device.name for device in plan.devices]
    return replace(plan, placement={op: names[index % len(names)] for index, op in enumerate(plan.placement)})


class Start:
    """The state of a model before its first step, to start again from."""

    def __init__(self, model: keras.Model) -> None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._model = model
        self._values = [variable.numpy() for variable in self._variables()]

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._values, strict=True):
            variable.assign(value)

    def _variables(self) -> Iterator[Any]:
        yield from self._model.variables
        yield from self._model.optimizer.variables


def run(model: keras.Model, data: Callable[[int], Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What a user sees of training, evaluation, prediction and training on."""
    x, y = data(ROWS)
    keras.utils.set_random_seed(3)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    further = model.fit(x, y, batch_size=BATCH, verbose=0).history
    numbers = {f"fit {key}": value for key, value in history.items()}
    numbers |= {f"evaluate {key}": value for key, value in evaluated.items()}
    numbers |= {f"fit again {key}": value for key, value in further.items()}
    return numbers, [np.asarray(one, np.float32) for one in keras.tree.flatten(predicted)]


def assert_same(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    (numbers, arrays), (expected_numbers, expected_arrays) = found, expected
    assert numbers == {key: pytest.approx(value, rel=tolerance) for key, value in expected_numbers.items()}
    for array, wanted in zip(arrays, expected_arrays, strict=True):
        assert np.linalg.norm(array - wanted) <= 10 * tolerance * np.linalg.norm(wanted)


def assert_placed(placed: Any) -> None:
    verification = partitioner.verify(placed.model, placed, num_steps=2)
    assert verification.misplaced_ops == ()
    assert verification.num_ops_checked > 20
    assert verification.passed, verification


def devices_of(variables: list[Any]) -> list[str]:
    return [DeviceName.parse(variable.value.device).short for variable in variables]


QUICK = ("mlp", "cnn", "resnet", "tied", "nested", "subclassed", "regularized", "lstm")
"""Models that are trained by default; the others take long, or are like one of these."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in models.MODELS]
)
def test_model_behaves_the_same_wherever_it_is_placed(name: str) -> None:
    build, data = models.MODELS[name], models.DATA[name]
    model = fresh(build)
    if not model.built:
        model(data(8)[0])
    start = Start(model)
    expected = run(model, data)
    start.restore()
    plan = layer_split(model, data, ["CPU:1", "CPU:2"])
    assert len(set(plan.placement.values())) == 2
    placed = partitioner.place(model, plan)
    assert_placed(placed)
    # The same model once more, on other devices and one more of them, as far apart as can be.
    hostile = round_robin(planned(model, data, ["CPU:2", "CPU:3", "CPU:4"], strategy="layer-split"))
    assert len(set(hostile.placement.values())) == 3
    placed = partitioner.place(model, hostile)
    assert_placed(placed)
    assert_same(run(placed, data), expected, TOLERANCES.get(name, TOLERANCE))


@pytest.mark.parametrize("name", models.optimizers())
def test_optimizer_updates_the_same_and_keeps_slots_beside_parameters(name: str) -> None:
    model = fresh(lambda: models.compiled(models.dense_stack(), models.optimizers()[name]()))
    start = Start(model)
    expected = run(model, models.vectors)
    start.restore()
    plan = round_robin(planned(model, models.vectors, ["CPU:1", "CPU:2", "CPU:3"], strategy="layer-split"))
    placed = partitioner.place(model, plan)
    assert_placed(placed)
    assert_same(run(placed, models.vectors), expected)
    home = {v.path.replace("/", "_"): d for v, d in zip(model.variables, devices_of(model.variables), strict=True)}
    slots = [v for v in model.optimizer.variables if any(f"/{path}_" in v.path for path in home)]
    for slot, device in zip(slots, devices_of(slots), strict=True):
        parameter = next(path for path in home if f"/{path}_" in slot.path)
        assert device == home[parameter], slot.path
    assert len(set(home.values())) == 3
    assert bool(slots) == (name != "sgd")


@pytest.fixture
def pair() -> tuple[keras.Model, Any]:
    """The unplaced multilayer perceptron and its twin, placed over two devices."""
    unplaced, twin = fresh(models.mlp), fresh(models.mlp)
    return unplaced, partitioner.place(twin, layer_split(twin, models.vectors, ["CPU:1", "CPU:2"]))


def fit_both(pair: tuple[keras.Model, Any], *args: Any, **options: Any) -> None:
    """fit() with the same arguments must give both the same history."""
    histories = []
    for model in pair:
        keras.utils.set_random_seed(5)
        histories.append(model.fit(*args, epochs=2, verbose=0, **options).history)
    assert histories[1] == {key: pytest.approx(value, rel=TOLERANCE) for key, value in histories[0].items()}


def column(y: np.ndarray) -> np.ndarray:
    return y[:, None]


@pytest.mark.parametrize(
    "options",
    [
        {"sample_weight": np.linspace(0, 2, ROWS)},
        {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.0}},
        {"validation_split": 0.25},
    ],
    ids=["sample_weight", "class_weight", "validation_split"],
)
def test_fit_options(pair: Any, options: dict[str, Any]) -> None:
    fit_both(pair, *models.vectors(ROWS), batch_size=BATCH, **options)


@pytest.mark.parametrize(
    "convert",
    [lambda y: y.astype(np.int64), lambda y: y.astype(np.int32), lambda y: y.astype(np.float32), column],
    ids=["int64", "int32", "float32", "(n, 1)"],
)
def test_fit_takes_labels_of_any_kind(pair: Any, convert: Callable[[np.ndarray], np.ndarray]) -> None:
    x, y = models.vectors(ROWS)
    fit_both(pair, x, convert(y), batch_size=BATCH)


def test_fit_takes_a_dataset_with_weights(pair: Any) -> None:
    x, y = models.vectors(ROWS)
    weights = np.linspace(0, 2, ROWS).astype(np.float32)
    fit_both(pair, tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(BATCH).prefetch(2))


def test_train_on_batch_and_metrics(pair: Any) -> None:
    x, y = models.vectors(BATCH)
    for _ in range(2):
        expected, found = [model.train_on_batch(x, y, return_dict=True) for model in pair]
        assert found == {key: pytest.approx(value, rel=TOLERANCE) for key, value in expected.items()}


def test_callbacks_find_layers(pair: Any) -> None:
    """As a histogram of activations does: `self.model.get_layer(...)`."""
    unplaced, placed = pair
    names = [layer.name for layer in unplaced.layers]
    found = [placed.get_layer(name) for name in names]
    assert [layer.name for layer in found] == names
    assert placed.get_layer(index=1).name == names[1]
    assert {id(variable) for layer in found for variable in layer.variables} == {
        id(v) for v in placed.variables_of_model
    }


def test_learning_rate_callbacks_take_effect(pair: Any) -> None:
    unplaced, placed = pair
    fit_both(
        pair,
        *models.vectors(ROWS),
        batch_size=BATCH,
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.1)],
    )
    assert float(placed.optimizer.learning_rate) == pytest.approx(1e-5)
    # A plateau as large as can be: no loss ever improves by 100.
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=100)
    x, y = models.vectors(ROWS)
    placed.fit(x, y, epochs=3, batch_size=BATCH, verbose=0, callbacks=[plateau])
    assert float(placed.optimizer.learning_rate) == pytest.approx(0.25e-5)
    assert float(unplaced.optimizer.learning_rate) == pytest.approx(1e-5)


def test_checkpoint_and_early_stopping(pair: Any, tmp_path: Any) -> None:
    _, placed = pair
    x, y = models.vectors(ROWS)
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=100, restore_best_weights=True)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", save_best_only=True)
    weights = keras.callbacks.ModelCheckpoint(tmp_path / "last.weights.h5", save_weights_only=True)
    history = placed.fit(x, y, epochs=5, batch_size=BATCH, verbose=0, callbacks=[stop, best, weights]).history
    assert len(history["loss"]) == 2
    again = keras.models.load_model(tmp_path / "best.keras")
    # The best epoch by loss is the second; early stopping put back the first.
    assert type(again) is keras.Model or type(again).__name__ == "Functional"
    placed.load_weights(tmp_path / "last.weights.h5")
    np.testing.assert_allclose(again.predict(x, verbose=0), placed.predict(x, verbose=0), rtol=1e-6)


def test_saved_file_reloads_in_plain_keras_and_trains_on(pair: Any, tmp_path: Any) -> None:
    x, y = models.vectors(ROWS)
    fit_both(pair, x, y, batch_size=BATCH)
    pair[1].save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    fit_both((pair[1], reloaded), x, y, batch_size=BATCH)
    np.testing.assert_allclose(reloaded.predict(x, verbose=0), pair[1].predict(x, verbose=0), rtol=1e-6)


def test_weights_interchange_with_the_unplaced_model(pair: Any, tmp_path: Any) -> None:
    unplaced, placed = pair
    x, y = models.vectors(ROWS)
    unplaced.fit(x, y, batch_size=BATCH, verbose=0)
    before = devices_of(placed.model.variables)
    unplaced.save_weights(tmp_path / "there.weights.h5")
    placed.load_weights(tmp_path / "there.weights.h5")
    np.testing.assert_allclose(placed.predict(x, verbose=0), unplaced.predict(x, verbose=0), rtol=1e-6)
    assert devices_of(placed.model.variables) == before
    placed.fit(x, y, batch_size=BATCH, verbose=0)
    placed.save_weights(tmp_path / "back.weights.h5")
    unplaced.load_weights(tmp_path / "back.weights.h5")
    np.testing.assert_allclose(placed.predict(x, verbose=0), unplaced.predict(x, verbose=0), rtol=1e-6)


def test_recompile_with_another_optimizer_and_loss(pair: Any) -> None:
    x, y = models.vectors(ROWS)
    fit_both(pair, x, y, batch_size=BATCH)
    targets = keras.utils.to_categorical(y, models.CLASSES)
    for model in pair:
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    fit_both(pair, x, targets, batch_size=BATCH)
    parameters = pair[1].model.trainable_variables
    assert devices_of(pair[1].optimizer.momentums) == devices_of(parameters)
    assert set(devices_of(parameters)) == {"CPU:1", "CPU:2"}


def test_the_model_was_compiled_anew_between_planning_and_placing(fresh_keras: None) -> None:
    def both() -> tuple[keras.Model, Any]:
        unplaced, twin = fresh(models.mlp), fresh(models.mlp)
        plan = layer_split(twin, models.vectors, ["CPU:1", "CPU:2"])
        for model in (unplaced, twin):
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], jit_compile=False)
        return unplaced, partitioner.place(twin, plan)

    x, y = models.vectors(ROWS)
    fit_both(both(), x, keras.utils.to_categorical(y, models.CLASSES), batch_size=BATCH)


def test_an_optimizer_given_for_planning_is_the_placed_models(fresh_keras: None) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    x, y = np.ones((8, 8), np.float32), np.ones((8, 1), np.float32)
    optimizer = keras.optimizers.SGD(0.5)
    plan = partitioner.plan(
        model,
        **asked(devices=["CPU:1", "CPU:2"], batch_size=8, loss="mse", optimizer=optimizer, strategy="layer-split"),
    )
    placed = partitioner.place(model, plan)
    assert placed.optimizer is optimizer
    placed.train_on_batch(x, y)
    assert int(optimizer.iterations.numpy()) == 1
    optimizer.learning_rate = 0.0
    before = [variable.numpy() for variable in placed.trainable_variables]
    placed.train_on_batch(x, y)
    for variable, value in zip(placed.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_planning_a_model_does_not_keep_it_alive() -> None:
    model = models.mlp()
    planned(model, models.vectors, ["CPU:1"])
    known = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("microbatches", [1, 2])
def test_outputs_are_kept_to_the_end_of_a_step_only_for_metrics(microbatches: int, fresh_keras: None) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build() -> keras.Model:
        model = models.dense_stack()
        model.compile("sgd", loss, jit_compile=False)
        return model

    def of_train(placed: Any) -> dict[str, Any]:
        (specs,) = [specs for kind, specs in placed.program.signatures() if kind is StepKind.TRAIN]
        return placed.program.function(StepKind.TRAIN, specs).structured_outputs

    pair = fresh(build), fresh(build)
    plan = planned(pair[1], models.vectors, ["CPU:1", "CPU:2"], strategy="layer-split", microbatches=microbatches)
    pair = pair[0], partitioner.place(pair[1], plan)
    x, y = models.vectors(96)
    fit_both(pair, x, y, batch_size=BATCH)
    assert of_train(pair[1]).keys() == {"loss"}
    for model in pair:
        model.compile("sgd", loss, metrics=["accuracy"], jit_compile=False)
    fit_both(pair, x, y, batch_size=BATCH)
    assert of_train(pair[1]).keys() == {"loss", "y_pred"}


def test_recompile_with_other_loss_weights(fresh_keras: None) -> None:
    def both() -> tuple[keras.Model, Any]:
        unplaced, twin = fresh(models.dict_of_outputs), fresh(models.dict_of_outputs)
        plan = layer_split(twin, models.dict_pairs, ["CPU:1", "CPU:2"])
        return unplaced, partitioner.place(twin, plan)

    pair = both()
    for model in pair:
        model.compile("sgd", model.loss, loss_weights={"kind": 0.1, "size": 5.0}, jit_compile=False)
    fit_both(pair, *models.dict_pairs(ROWS), batch_size=BATCH)


def test_variables_live_where_the_plan_has_their_ops(pair: Any) -> None:
    _, placed = pair
    device_of_layer = {layer.name: DeviceName.parse(layer.device).short for layer in placed.plan.layers}
    for layer in placed.model.layers[1:]:
        assert set(devices_of(layer.variables)) == {device_of_layer[layer.name]}


def test_overflow_halves_the_scale_and_leaves_weights_alone() -> None:
    """Loss scaling whose update is split over devices still skips the step that overflows, as Keras does."""
    models_ = []
    for _ in range(2):
        model = fresh(models.float16)
        models_.append(model)
    unplaced, twin = models_
    placed = partitioner.place(twin, layer_split(twin, models.vectors, ["CPU:1", "CPU:2"]))
    x, y = models.vectors(BATCH)
    for factor in (1.0, 1e30, 1.0):
        for model in (unplaced, placed):
            model.train_on_batch(x * np.float32(factor), y)
    np.testing.assert_array_equal(placed.optimizer.dynamic_scale.numpy(), 2.0**9)
    for variable, expected in zip(
        [*twin.variables, *placed.optimizer.variables],
        [*unplaced.variables, *unplaced.optimizer.variables],
        strict=True,
    ):
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-6, atol=0, err_msg=variable.path)
