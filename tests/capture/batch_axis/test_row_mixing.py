"""Whether rows of a batch influence each other: layers of which it is known from what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from asking import asked
from captures import capture
from keras import layers, ops

import partitioner
from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.signature import input_specs
from partitioner.ir.step import StepKind

LENGTH, WIDTH = 6, 4
Compute = Callable[[Any], Any]


class Own(layers.Layer):
    """A layer that computes what it is told."""

    def __init__(self, compute: Compute) -> None:
        super().__init__(name="own")
        self.compute = compute

    def call(self, inputs: Any) -> Any:
        return self.compute(inputs)


def model_with(compute: Compute, *, shape: tuple[int | None, ...] = (LENGTH, WIDTH), last: bool = False) -> keras.Model:
    inputs = keras.Input(shape)
    x = Own(compute)(layers.Dense(WIDTH, name="before")(inputs))
    model = keras.Model(inputs, x if last else layers.Dense(2, name="behind")(x))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def running_sum(x: Any) -> Any:
    total = tf.scan(lambda before, now: before + now, tf.transpose(x, [1, 0, 2]))
    return tf.transpose(total, [1, 0, 2])


def merged_with_positions(x: Any) -> Any:
    """Rows and positions on one axis and back, by sizes that are computed."""
    rows, length = tf.shape(x)[0], tf.shape(x)[1]
    flat = tf.reshape(x, [rows * length, WIDTH])
    return tf.reshape(flat / tf.norm(flat, axis=-1, keepdims=True), [rows, length, WIDTH])


def attention(x: Any) -> Any:
    return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)


APART: dict[str, Compute] = {
    "mean over positions": lambda x: x - tf.reduce_mean(x, axis=1, keepdims=True),
    "attention": attention,
    "scan over positions": running_sum,
    "map over rows": lambda x: tf.map_fn(tf.nn.softmax, x),
    "rows and positions on one axis": merged_with_positions,
    "constant": lambda x: x + tf.range(LENGTH * WIDTH, dtype=x.dtype)[: LENGTH * WIDTH // LENGTH],
    "complex numbers": lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))),
    "largest": lambda x: tf.math.top_k(x, 2).values,
    "random numbers of each row": lambda x: x + tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "16 bits": lambda x: tf.cast(tf.nn.softmax(tf.cast(x, tf.bfloat16)), x.dtype),
    "not a number": lambda x: tf.sqrt(x),
    "every axis of one": lambda x: tf.reshape(tf.squeeze(x[:, :1, :1]), [-1, 1, 1]),
}

MIXING: dict[str, Compute] = {
    "mean over the batch": lambda x: x - tf.reduce_mean(x, axis=0, keepdims=True),
    "softmax over the batch": lambda x: tf.nn.softmax(x, axis=0),
    "next row": lambda x: tf.roll(x, 1, axis=0),
    "number of the row": lambda x: x + tf.cast(tf.range(tf.shape(x)[0]), x.dtype)[:, None, None],
    "number of rows": lambda x: x / tf.cast(tf.shape(x)[0], x.dtype),
    "a condition for all": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: 2.0 * x, lambda: 3.0 * x),
    "running sum over the batch": lambda x: tf.cumsum(x, axis=0),
}


@pytest.mark.parametrize("kind", [StepKind.TRAIN, StepKind.PREDICT])
@pytest.mark.parametrize("compute", APART.values(), ids=APART)
def test_layers_that_compute_each_row_by_itself(compute: Compute, kind: StepKind) -> None:
    step = capture(model_with(compute), kind)
    assert (step.graph.mixing_layer, step.fixed_batch) == ("", "")


@pytest.mark.parametrize("kind", [StepKind.TRAIN, StepKind.PREDICT])
@pytest.mark.parametrize("compute", MIXING.values(), ids=MIXING)
def test_layers_that_bring_rows_together(compute: Compute, kind: StepKind) -> None:
    """Bug: replicas and microbatches of such layers gave other numbers, and no plan said so."""
    step = capture(model_with(compute), kind)
    assert (step.graph.mixing_layer, step.fixed_batch) == ("own", "")


@pytest.mark.parametrize("kind", [StepKind.TRAIN, StepKind.PREDICT])
def test_a_switch_whose_branches_have_effects_is_for_all_rows(kind: StepKind) -> None:
    """Bug: the probe gives random values for such an op's results, and microbatches gave other numbers."""

    def switch(x: Any) -> Any:
        chosen = tf.reduce_sum(tf.cast(x > 0, tf.int32)) % 2
        return tf.switch_case(chosen, [lambda: x, lambda: tf.nn.dropout(x, 0.5)])

    assert capture(model_with(switch), kind).graph.mixing_layer == "own"
    by_size = model_with(lambda x: tf.cond(tf.shape(x)[0] > 0, lambda: tf.nn.dropout(x, 0.5), lambda: x))
    assert capture(by_size, kind).graph.mixing_layer == ""


def test_sizes_that_inputs_leave_open_are_no_rows() -> None:
    """The first of two open axes is the batch."""
    model = model_with(attention, shape=(None, WIDTH))
    specs = (input_specs(model, {"": (LENGTH, WIDTH)}), None, None)
    assert capture_step(model, StepKind.PREDICT, specs, batch_size=8).graph.mixing_layer == ""
    model = model_with(MIXING["next row"], shape=(None, WIDTH))
    assert capture_step(model, StepKind.PREDICT, specs, batch_size=8).graph.mixing_layer == "own"


@pytest.mark.parametrize("kind", [StepKind.TRAIN, StepKind.PREDICT])
@pytest.mark.parametrize(
    ("dtype", "lookup"),
    [
        ("string", lambda: layers.StringLookup(vocabulary=["red", "green"])),
        ("int64", lambda: layers.IntegerLookup(vocabulary=[3, 5])),
    ],
)
def test_what_is_looked_up_has_the_rows_of_its_keys(dtype: str, lookup: Callable[[], Any], kind: StepKind) -> None:
    """Bug: TensorFlow infers no shape of it, as the table is made elsewhere, and no such batch was cut."""
    inputs = keras.Input((LENGTH,), dtype=dtype)
    x = layers.Embedding(4, WIDTH)(lookup()(inputs))
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile("sgd", "mse", jit_compile=False)
    step = capture(model, kind)
    assert (step.graph.mixing_layer, step.uncuttable) == ("", "")
    found = next(op for op in step.graph.ops if op.type == "LookupTableFindV2")
    assert step.graph.tensor[found.outputs[0]].spec.shape == (step.graph.batch_size, LENGTH)


def test_the_first_layer_that_mixes_is_told() -> None:
    inputs = keras.Input((WIDTH,))
    x = layers.Dense(WIDTH)(inputs)
    x = x + ops.mean(x, axis=0)
    model = keras.Model(inputs, Own(MIXING["next row"])(x))
    model.compile("sgd", "mse")
    assert capture(model).graph.mixing_layer == "mean"


def test_outputs_for_pairs_of_rows_cannot_be_put_together() -> None:
    """Bug: replicas of such a model crashed its verification."""
    step = capture(model_with(lambda x: tf.matmul(x, x, transpose_b=True), shape=(WIDTH,), last=True))
    assert step.graph.mixing_layer == "own"
    assert "the output of 'own' for a part of the batch" in step.uncuttable


def test_a_layer_that_needs_rows_in_pairs_has_no_parts() -> None:
    def exchange(x: Any) -> Any:
        return tf.reshape(tf.reverse(tf.reshape(x, [-1, 2, LENGTH, WIDTH]), [1]), tf.shape(x))

    reason = "rows of a part may be too few for Reshape in 'own': it takes rows in groups of 2"
    assert capture(model_with(exchange)).uncuttable == reason


def test_a_layer_for_one_batch_size_has_no_parts() -> None:
    def compute(x: Any) -> Any:
        return tf.reshape(tf.ensure_shape(x, [8, LENGTH, WIDTH]), [-1, tf.shape(x)[1], WIDTH])

    step = capture(model_with(compute), StepKind.PREDICT)
    assert step.uncuttable == f"output 'behind' has no batch axis: shape (8, {LENGTH}, 2)"


def test_left_to_choose_a_batch_whose_rows_meet_runs_in_one_piece() -> None:
    model = model_with(MIXING["mean over the batch"])
    found = partitioner.plan(model, devices=["GPU:0", "GPU:1"], batch_size=64, time_limit=5)
    assert (found.num_microbatches, found.num_replicas) == (1, 1)
    assert any("only the rows of a microbatch come together (own: Mean)" in note for note in found.notes)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [{"microbatches": 2, "strategy": "layer-split"}, {"strategy": "mirrored"}])
def test_a_batch_that_is_cut_all_the_same_says_so_and_is_verified(layout: dict[str, Any], training: bool) -> None:
    """Beside the unplaced model on the same parts."""
    if not training and layout["strategy"] == "mirrored":
        layout = {"strategy": "mixed", "replicas": 2}
    model = model_with(MIXING["next row"])
    devices = ["CPU:1", "CPU:2"]
    placed = partitioner.auto_place(
        model, **asked(devices=devices, batch_size=8, training=training, time_limit=5, **layout)
    )
    assert any(
        "only the rows of a microbatch " in note and note.endswith(" come together (own: Roll)")
        for note in placed.plan.notes
    )
    found = partitioner.verify(model, placed)
    assert found.passed
    # Rounding, not another order of the rows: that would differ by more than 1.
    assert found.control_max_rel_diff < 1e-3
    assert found.outputs_max_rel_diff < 1e-5
