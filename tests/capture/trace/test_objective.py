"""What is minimised and how: compiled, given, or assumed; and who may not be trained."""

from __future__ import annotations

import keras
import models
import numpy as np
import pytest
import tensorflow as tf

from partitioner.capture.trace.objective import refuse_other_objective, training_objective
from partitioner.errors import UsageError
from tests import own_steps

X = np.ones((2, models.WIDTH), np.float32)


def test_a_compiled_model_keeps_its_own() -> None:
    model = models.mlp()
    found = training_objective(model)
    assert (found.loss_origin, found.optimizer_origin) == ("compiled", "compiled")
    assert found.optimizer is model.optimizer
    assert (found.loss_name, found.optimizer_name) == ("sparse_categorical_crossentropy", "Adam")


def test_an_uncompiled_model_gets_the_defaults_and_they_are_said_to_be_assumed() -> None:
    found = training_objective(models.dense_stack())
    assert (found.loss_name, found.loss_origin) == ("mean_squared_error", "assumed")
    assert (found.optimizer_name, found.optimizer_origin) == ("Adam", "assumed")


def test_options_win_over_what_was_compiled() -> None:
    found = training_objective(models.mlp(), loss="mae", optimizer="lion")
    assert (found.loss_name, found.loss_origin) == ("mae", "option")
    assert (found.optimizer_name, found.optimizer_origin) == ("Lion", "option")


def test_a_given_loss_is_averaged_over_rows_weighted_and_summed_over_outputs_and_penalties() -> None:
    inputs = keras.Input((1,))
    dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    model = keras.Model(inputs, [dense(inputs), inputs])
    found = training_objective(model, loss="mse")
    x, y = tf.constant([[1.0], [3.0]]), [tf.constant([[0.0], [0.0]]), tf.constant([[1.0], [1.0]])]
    predicted = model(x)
    # (1 + 9) / 2 for the first output, (0 + 4) / 2 for the second, 0.5 * 1 for the kernel.
    assert float(found.compute_loss(x, y, predicted, None, True)) == pytest.approx(5 + 2 + 0.5)
    # Weights (1, 0): 1 / 2, 0 / 2, 0.5.
    weights = tf.constant([1.0, 0.0])
    assert float(found.compute_loss(x, y, predicted, weights, True)) == pytest.approx(0.5 + 0 + 0.5)


def test_a_compiled_loss_is_what_keras_itself_computes() -> None:
    model = models.regularized()
    y = np.array([0, 3])
    predicted = model(X)
    found = float(training_objective(model).compute_loss(X, y, predicted, None, True))
    penalties = float(tf.add_n([tf.reduce_sum(one) for one in model.losses]))
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, predicted)
    assert penalties > 0
    assert found == pytest.approx(float(cross_entropy) + penalties, rel=1e-6)


@pytest.mark.parametrize("option", [{"loss": "no such"}, {"optimizer": "no such"}])
def test_names_keras_does_not_know(option: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"Keras knows no .* 'no such'") as caught:
        training_objective(models.dense_stack(), **option)
    assert caught.value.help


def test_a_model_with_its_own_train_step_takes_no_other_loss() -> None:
    with pytest.raises(UsageError, match=r"OwnTrainStep defines its own .* takes no other loss") as caught:
        refuse_other_objective(own_steps.own_train_step(), "mse", None)
    assert "step=Step(training=False)" in str(caught.value)
    refuse_other_objective(own_steps.own_train_step(), None, None)


def test_loss_names_of_structures() -> None:
    assert training_objective(models.dict_of_outputs()).loss_name == (
        "kind: sparse_categorical_crossentropy, size: mse"
    )
    assert training_objective(models.list_of_outputs()).loss_name == "sparse_categorical_crossentropy, mse"
