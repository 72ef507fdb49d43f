"""Whether a loss is a mean or a sum over rows, found by running it: losses whose answer is known from their formula."""

from __future__ import annotations

from typing import Any

import keras
import models
import pytest
import tensorflow as tf
from captures import capture
from keras import layers, losses, ops

from partitioner.ir.step import LossReduction, StepKind

MEAN, SUM, OTHER = LossReduction


def dense(loss: Any, units: int = 3, *, activation: Any = None, **options: Any) -> keras.Model:
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(units, activation=activation, name="scores", **options)(inputs))
    model.compile("sgd", loss, jit_compile=False)
    return model


def squares(y: Any, p: Any) -> Any:
    return ops.mean(ops.square(y - p), axis=-1)


def scalar_mean(y: Any, p: Any) -> Any:
    return ops.mean(ops.square(y - p))


def scalar_sum(y: Any, p: Any) -> Any:
    return ops.sum(ops.square(y - p))


def pairs(y: Any, p: Any) -> Any:
    """Contrastive: how alike any two rows of the batch are."""
    return ops.mean(ops.matmul(p, ops.transpose(p)))


def root_mean_square(y: Any, p: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(y - p)))


def known_targets_only(y: Any, p: Any) -> Any:
    """The mean over the targets that are not -1."""
    known = ops.cast(ops.not_equal(y, -1.0), "float32")
    return ops.sum(known * ops.square(y - p)) / ops.maximum(ops.sum(known), 1.0)


def one_by_one(y: Any, p: Any) -> Any:
    """A loop: its body is a function of its own."""
    return tf.map_fn(lambda pair: tf.reduce_mean(tf.square(pair[0] - pair[1])), (y, p), fn_output_signature=tf.float32)


class Fails(losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.ensure_shape(y_pred, [8, 3])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", MEAN),
        ("huber", MEAN),
        ("hinge", MEAN),
        (losses.CategoricalCrossentropy(from_logits=True), MEAN),
        (losses.SparseCategoricalCrossentropy(from_logits=True), MEAN),
        (losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), OTHER),
        (losses.MeanSquaredError(reduction="sum"), SUM),
        (losses.MeanSquaredError(reduction="mean_with_sample_weight"), MEAN),
        (squares, MEAN),
        (scalar_mean, MEAN),
        (scalar_sum, SUM),
        (one_by_one, MEAN),
        (pairs, OTHER),
        (root_mean_square, OTHER),
        (known_targets_only, OTHER),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value, "name", None) or str(value),
)
def test_loss_without_weights(loss: Any, expected: LossReduction) -> None:
    step = capture(dense(loss))
    assert (step.loss_reduction, bool(step.loss_reduction_note)) == (expected, expected is OTHER)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum_over_batch_size", MEAN), ("sum", SUM), ("mean_with_sample_weight", OTHER)]
)
def test_loss_with_weights(reduction: Any, expected: LossReduction) -> None:
    """Divided by the number of rows it is a mean; divided by the sum of the weights it is none."""
    model = dense(losses.MeanSquaredError(reduction=reduction))
    assert capture(model, weighted=True).loss_reduction is expected


@pytest.mark.parametrize(
    ("loss", "activation", "units"),
    [
        ("sparse_categorical_crossentropy", "softmax", 3),
        ("categorical_crossentropy", "softmax", 3),
        ("binary_crossentropy", "sigmoid", 1),
    ],
)
def test_cross_entropies_that_keras_takes_from_the_logits(loss: str, activation: str, units: int) -> None:
    assert capture(dense(loss, units, activation=activation)).loss_reduction is MEAN
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Activation(activation)(layers.Dense(units)(inputs)))
    model.compile("sgd", loss, jit_compile=False)
    assert capture(model).loss_reduction is MEAN


def test_class_numbers_of_a_binary_target() -> None:
    targets = tf.TensorSpec([None, 1], "int32")
    assert capture(dense("binary_crossentropy", 1, activation="sigmoid"), targets=targets).loss_reduction is MEAN


@pytest.mark.parametrize("name", ["mlp", "transformer", "tied", "subclassed", "dict_of_outputs", "float16"])
def test_models_that_average_over_rows(name: str) -> None:
    model = models.MODELS[name]()
    for kind in (StepKind.TRAIN, StepKind.EVALUATE):
        step = capture(model, kind)
        assert (step.loss_reduction, step.loss_reduction_note) == (MEAN, "")


def test_a_mean_beside_a_sum_is_neither() -> None:
    model = models.dict_of_outputs()
    kind = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile("sgd", {"kind": kind, "size": "mse"}, jit_compile=False)
    assert capture(model).loss_reduction is OTHER


def test_a_penalty_on_weights_is_the_same_for_every_part() -> None:
    assert capture(dense("mse", kernel_regularizer="l2", bias_regularizer="l1")).loss_reduction is MEAN
    # In a sum of parts each part would add the penalty again.
    total = losses.MeanSquaredError(reduction="sum")
    assert capture(dense(total, kernel_regularizer="l2")).loss_reduction is OTHER


def penalised(penalty: Any) -> keras.Model:
    """A model that adds a loss of its hidden activations."""

    class Penalty(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(penalty(x))
            return x

    inputs = keras.Input((5,))
    hidden = Penalty(name="penalty")(layers.Dense(4, name="hidden")(inputs))
    model = keras.Model(inputs, layers.Dense(3)(hidden))
    model.compile("sgd", "mse", jit_compile=False)
    return model


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (lambda x: ops.mean(ops.abs(x)), MEAN),
        (lambda x: ops.sum(ops.square(x)) / ops.cast(ops.shape(x)[0], "float32"), MEAN),
        (lambda x: ops.mean(ops.square(ops.reshape(x, (-1, 2)))), MEAN),
        (lambda x: ops.sum(ops.square(x)), OTHER),  # a sum beside a mean
        (lambda x: ops.sqrt(ops.mean(ops.square(x))), OTHER),
        (lambda x: ops.square(ops.mean(x)), OTHER),
        (lambda x: ops.sum(ops.relu(x - 1)), OTHER),  # nothing where all are below 1
        (lambda x: ops.mean(ops.relu(-x)), MEAN),
        (lambda x: ops.mean(-x * ops.log(x)), MEAN),  # of probabilities: it has no value for others
    ],
    ids=["mean", "per row", "in pairs", "sum", "root", "squared mean", "hinge", "below zero", "entropy"],
)
def test_a_loss_that_a_layer_adds_of_its_activations(penalty: Any, expected: LossReduction) -> None:
    assert capture(penalised(penalty)).loss_reduction is expected


def test_a_penalty_on_activations_is_divided_by_rows() -> None:
    """Activity regularizers were refused in microbatches, though Keras divides them by the batch."""
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, activity_regularizer="l2", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(3)(hidden))
    model.compile("sgd", "mse", jit_compile=False)
    assert capture(model).loss_reduction is MEAN


def test_a_mask_made_from_the_input_is_not_averaged_by_rows() -> None:
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=True, name="tokens")(inputs)
    x = layers.LSTM(4, return_sequences=True)(x)
    model = keras.Model(inputs, layers.Dense(20)(x))
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    step = capture(model)
    assert step.loss_reduction is OTHER
    assert step.loss_reduction_note.startswith("the loss is masked by ")


def test_the_sentence_names_the_op() -> None:
    note = capture(dense(pairs)).loss_reduction_note
    assert note == "loss 'pairs' is not an average or a sum over rows, because of MatMul (compile_loss/pairs/MatMul)"


def test_a_loss_for_one_batch_size_says_how() -> None:
    step = capture(dense(Fails()))
    assert step.loss_reduction is OTHER
    assert "because of EnsureShape (compile_loss/fails/EnsureShape)" in step.loss_reduction_note


def test_finding_out_changes_nothing() -> None:
    model = models.regularized()
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [variable.numpy() for variable in variables]
    capture(model)
    for variable, value in zip(variables, before, strict=True):
        assert (variable.numpy() == value).all(), variable.path
