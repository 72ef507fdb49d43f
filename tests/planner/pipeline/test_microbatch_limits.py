"""Steps that cannot be cut are refused by name, notes say what changes, and layers with effects run in microbatches."""

from __future__ import annotations

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
from partitioner.errors import UsageError
from partitioner.ir.step import StepKind
from tests import models
from tests.twins import equal_pair, losses

ROWS = 16
BATCH = models.vectors(ROWS)
PINS = {"one|odd|norm": "CPU:1", "two|again|scores": "CPU:2"}


class Constant(layers.Layer):
    """Reads a tensor made outside the step, too large for TensorFlow to copy into the graph."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.table = tf.ones((300, 16)) / 2

    def call(self, x: Any) -> Any:
        return x * self.table[7]


class Lookup(layers.Layer):
    """Reads a hash table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([0.5, 1.5]))
        self.table = tf.lookup.StaticHashTable(pairs, 1.0)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(x * self.table.lookup(tf.cast(x > 0, tf.int64)), [None, 16])


class Draw(layers.Layer):
    """Draws from a random generator that TensorFlow keeps, to no effect."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * tf.random.uniform(tf.shape(x))


class Python(layers.Layer):
    """Calls Python, which TensorFlow takes to have state."""

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        rows = tf.numpy_function(len, [x], tf.int64)
        return x * tf.cast(tf.reshape(rows, []) > 0, x.dtype)


class Print(layers.Layer):
    """Prints the number of rows it gets to a file."""

    target = ""

    def call(self, x: Any) -> Any:
        tf.print(tf.shape(x)[0], output_stream=f"file://{self.target}")
        return x


class Count(layers.Layer):
    """Counts its calls, as Keras does it (reads, adds and assigns) or in place."""

    def __init__(self, *, in_place: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.in_place = in_place

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        if self.in_place:
            self.calls.value.assign_add(1.0)
        else:
            self.calls.assign_add(1.0)
        return x


class Differentiated(layers.Layer):
    """Calls Python for what is differentiated."""

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.py_function(lambda value: 2.0 * value, [x], tf.float32), [None, 16])


def with_layers(odd: layers.Layer, again: layers.Layer) -> keras.Model:
    """A layer in each of two stages."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((models.WIDTH,))
    x = odd(layers.Dense(16, activation="tanh", name="one")(inputs))
    x = again(layers.Dense(16, activation="tanh", name="two")(x))
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x)), "sgd")


def planned(model: keras.Model, *, batch_size: int = ROWS, microbatches: Any = 4, **options: Any) -> Any:
    return partitioner.plan(
        model,
        **asked(
            devices=["CPU:1", "CPU:2"],
            batch_size=batch_size,
            strategy="layer-split",
            microbatches=microbatches,
            **{"schedule": "1f1b", "pins": PINS, "time_limit": 4} | options,
        ),
    )


def stage_calls(placed: Any) -> list[Any]:
    """The ops of the training step that call the forward and backward functions of stages."""
    ((kind, specs),) = [pair for pair in placed.program.signatures() if pair[0] is StepKind.TRAIN]
    graph = placed.program.function(kind, specs).graph
    return [op for op in graph.get_operations() if "Call" in op.type and "staged_step/" in op.name and op.device != ""]


@pytest.mark.parametrize("make", [Constant, Lookup, Draw, Python, Count], ids=lambda make: make.__name__)
def test_layers_with_effects_run_and_their_stages_do_not_wait_for_each_other(make: Callable[..., Any]) -> None:
    model = with_layers(make(name="odd"), make(name="again"))
    other = with_layers(make(name="odd"), make(name="again"))
    plan = planned(other)
    placed = partitioner.place(other, plan)
    assert plan.num_microbatches == 4
    np.testing.assert_allclose(losses(placed, BATCH), losses(model, BATCH), rtol=1e-6)
    calls = stage_calls(placed)
    assert len(calls) >= 16  # two stages, forward and backward, four microbatches
    for call in calls:
        waits_for = [op for op in call.control_inputs if op in calls and op.device != call.device]
        assert not waits_for, f"{call.name} waits for {[op.name for op in waits_for]}"


def test_a_print_in_a_stage_prints_once_per_microbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Print, "target", str(tmp_path / "rows.txt"))
    model = with_layers(Print(name="odd"), layers.Activation("linear", name="again"))
    losses(partitioner.place(model, planned(model)), BATCH, steps=1)
    assert (tmp_path / "rows.txt").read_text().split() == ["4"] * 4


def test_a_layer_that_counts_is_named_and_counts_microbatches() -> None:
    model = with_layers(Count(name="odd"), Count(name="again"))
    plan = planned(model)
    assert "unlike with the whole batch, variables are updated once per microbatch (odd, again)" in plan.notes
    losses(partitioner.place(model, plan), BATCH)
    assert [float(layer.calls.numpy()) for layer in model.layers if isinstance(layer, Count)] == [12.0, 12.0]


def test_a_variable_written_in_place_is_refused_with_its_op_and_layer() -> None:
    model = with_layers(Count(name="odd", in_place=True), Draw(name="again"))
    with pytest.raises(UsageError, match=r"AssignAddVariableOp\) uses the variable odd/calls") as caught:
        planned(model)
    assert caught.value.notes == ("layer: odd",)
    assert planned(model, microbatches=1, schedule="auto").num_microbatches == 1


def test_the_gradient_of_a_python_function_is_refused_with_its_layer() -> None:
    model = with_layers(Differentiated(name="odd"), Draw(name="again"))
    with pytest.raises(UsageError, match=r"tf\.py_function in odd"):
        planned(model)
    plan = planned(model, microbatches="auto", schedule="auto")
    assert plan.num_microbatches == 1
    assert any("tf.py_function in odd" in note for note in plan.notes)


class Memory(layers.Layer):
    """Adds the value that it stored last."""

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(shape=(16,), initializer="zeros", trainable=False, name="kept")

    def call(self, x: Any, tell: bool = False) -> Any:
        if tell:
            self.kept.assign(keras.ops.mean(x, axis=0))
            return x
        return x + self.kept


def test_state_that_would_serialise_the_pipeline_is_refused_with_its_variable() -> None:
    """The first stage needs what the third one computed of the microbatch before."""
    inputs = keras.Input((models.WIDTH,))
    memory = Memory(name="memory")
    x = memory(layers.Dense(16, name="one")(inputs))
    x = layers.Dense(16, activation="tanh", name="two")(x)
    x = memory(x, tell=True)
    model = models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x)), "sgd")
    with pytest.raises(UsageError, match="memory/kept is read by stage 0 and written by stage 2"):
        planned(model, pins={"one|memory": "CPU:1", "two|scores": "CPU:2"})


def normalised() -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((models.WIDTH,))
    x = layers.BatchNormalization(momentum=0.9, name="norm")(layers.Dense(16, name="one")(inputs))
    x = layers.Dropout(0.2, seed=5, name="again")(layers.Dense(16, activation="tanh", name="two")(x))
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x)), "sgd")


def test_normalisation_and_dropout_run_and_the_plan_names_them() -> None:
    model = normalised()
    plan = planned(model)
    assert plan.notes[-2:] == (
        "unlike with the whole batch, each microbatch is normalised by itself and updates moving averages once (norm)",
        "unlike with the whole batch, random numbers are drawn anew for each microbatch (again)",
    )
    placed = partitioner.place(model, plan)
    verification = partitioner.verify(model, placed, num_steps=2)
    assert verification.passed, verification

    # What the notes say: the averages are those of the unplaced layer called on four parts of the batch.
    unplaced = normalised()
    x, _ = models.vectors(ROWS)
    for part in np.split(x, 4):
        unplaced(part, training=True)
    losses(placed, BATCH, steps=1)
    for value, expected in zip(
        model.get_layer("norm").non_trainable_variables, unplaced.get_layer("norm").non_trainable_variables, strict=True
    ):
        np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)


def test_more_microbatches_than_rows_are_refused_with_the_sizes_that_work() -> None:
    model = models.mlp()
    with pytest.raises(UsageError, match=r"17 microbatches of a batch of 16 rows") as caught:
        planned(model, microbatches=17, pins={})
    assert caught.value.for_command_line().endswith("help: at most --microbatches 16, or at least --batch-size 17")
    assert planned(model, microbatches=16, pins={}).num_microbatches == 16
    assert planned(model, microbatches=17, batch_size=17, pins={}).num_microbatches == 17


@pytest.mark.parametrize("microbatches", [3, 4, 13])
def test_a_batch_that_the_microbatches_do_not_divide_is_planned_and_run_exactly(microbatches: int) -> None:
    model, other = equal_pair(models.mlp)
    placed = partitioner.place(other, planned(other, batch_size=13, microbatches=microbatches, pins={}))
    np.testing.assert_allclose(losses(placed, models.vectors(13)), losses(model, models.vectors(13)), rtol=1e-6)


def test_fewer_stages_than_devices_are_no_want_of_memory() -> None:
    """Three small layers were reported not to fit on GPUs of 80 GiB."""
    keras.utils.set_random_seed(3)
    sizes = (16, 16, models.CLASSES)
    model = keras.Sequential([keras.Input((models.WIDTH,)), *(layers.Dense(size) for size in sizes)])
    with pytest.raises(UsageError, match=r"stages at most, fewer than 10 devices") as caught:
        partitioner.plan(
            models.compiled(model, "adam"),
            devices="GPU:0-9",
            hardware="h100-sxm",
            batch_size=ROWS,
            strategy="layer-split",
            microbatches=4,
            step=partitioner.Step(jit_compile=False),
        )
    assert "strategy='auto'" in str(caught.value)
