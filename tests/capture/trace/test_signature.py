"""Specs of inputs and targets: from the model, from sizes given, from examples; and what is said when none will do."""

from __future__ import annotations

from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from partitioner.capture.trace.signature import input_specs, specs_like, target_specs
from partitioner.capture.trace.trace import output_specs
from partitioner.errors import ModelError, UsageError
from partitioner.spelling import argument, as_python


def shapes(specs: Any) -> Any:
    return tf.nest.map_structure(lambda s: (s.shape.as_list(), s.dtype.name), specs)


def open_model(*sizes: int | None) -> keras.Model:
    inputs = keras.Input(sizes, name="image")
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(inputs))


class Unbuilt(keras.Model):
    def call(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", ([None, 12], "float32")),
        ("transformer", ([None, 6], "int32")),
        ("cnn", ([None, 8, 8, 2], "float32")),  # Sequential: one input, not a list of one
        ("dict_of_outputs", {"left": ([None, 12], "float32"), "right": ([None, 12], "float32")}),
        ("list_of_outputs", [([None, 12], "float32"), ([None, 12], "float32")]),
    ],
)
def test_models_that_know_their_inputs(name: str, expected: Any) -> None:
    assert shapes(input_specs(models.MODELS[name]())) == expected


def test_open_sizes_are_filled_by_name_or_as_the_only_input() -> None:
    for given in ({"": (32, 16, 3)}, {"image": (32, 16, 3)}):
        assert shapes(input_specs(open_model(None, None, 3), given)) == ([None, 32, 16, 3], "float32")


def test_open_size_that_nobody_gives() -> None:
    with pytest.raises(ModelError, match=r"'image' .*unknown shape \(\?, \?, 16, 3\)") as caught:
        input_specs(open_model(None, 16, 3))
    assert caught.value.help == f"give it, e.g. {as_python(argument('input_shape', {'image': (64, 16, 3)}))}"


def test_sizes_that_contradict_the_model() -> None:
    message = r"input_shape=\(32, 16, 1\)\) contradicts the input 'image': \(\?, \?, \?, 3\)"
    with pytest.raises(UsageError, match=message):
        input_specs(open_model(None, None, 3), {"": (32, 16, 1)})


def test_sizes_for_a_stranger() -> None:
    with pytest.raises(UsageError, match="no input named 'picture'; its inputs: image"):
        input_specs(open_model(None, None, 3), {"picture": (32, 16, 3)})


def test_sizes_without_a_name_for_several_inputs() -> None:
    with pytest.raises(UsageError, match="the model has 2 inputs: left, right") as caught:
        input_specs(models.dict_of_outputs(), {"": (12,)})
    assert caught.value.help == as_python(argument("input_shape", {"left": (12,), "right": (12,)}))


def test_subclassed_model_needs_sizes_or_examples() -> None:
    with pytest.raises(ModelError, match="is subclassed"):
        input_specs(Unbuilt())
    assert shapes(input_specs(Unbuilt(), {"": (5,)})) == ([None, 5], "float32")
    assert shapes(input_specs(Unbuilt(), {"a": (5,), "b": ()})) == {
        "a": ([None, 5], "float32"),
        "b": ([None], "float32"),
    }


def test_a_sequential_without_an_input_is_not_built() -> None:
    with pytest.raises(ModelError, match="is not built"):
        input_specs(keras.Sequential([layers.Dense(3)]))


class _TwoInputs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return keras.ops.mean(self.dense(inputs["words"]), axis=1) + inputs["age"]


def test_subclassed_model_that_has_been_called_with_a_dictionary_remembers() -> None:
    """It was taken for one shape, whose first size is its batch."""
    model = _TwoInputs()
    model({"words": np.zeros((3, 5, 6)), "age": np.zeros((3, 1))})
    assert shapes(input_specs(model)) == {"age": ([None, 1], "float32"), "words": ([None, 5, 6], "float32")}


def test_an_unknown_size_of_an_input_in_a_dictionary_is_named() -> None:
    model = _TwoInputs()
    model({"words": keras.Input((None, 6)), "age": keras.Input((1,))})
    with pytest.raises(ModelError, match="'words'") as caught:
        input_specs(model)
    assert caught.value.help == f"give it, e.g. {as_python(argument('input_shape', {'words': (64, 6)}))}"


def test_subclassed_model_that_has_been_called_remembers() -> None:
    model = models.subclassed()
    model(np.zeros((3, models.WIDTH), np.float32))
    assert shapes(input_specs(model)) == ([None, models.WIDTH], "float32")


def test_examples_give_shapes_and_dtypes_with_numpys_float64_taken_as_float32() -> None:
    examples = {"a": np.zeros((2, 3)), "b": np.zeros((2,), np.int64)}
    expected = {"a": ([None, 3], "float32"), "b": ([None], "int64")}
    assert shapes(input_specs(Unbuilt(), None, examples)) == expected


def test_a_scalar_is_no_example() -> None:
    with pytest.raises(UsageError, match="scalar"):
        input_specs(Unbuilt(), None, np.float32(1))


def test_open_sizes_of_outputs_follow_from_those_given_for_inputs() -> None:
    """Targets had as many tokens as the batch has rows, where only `--input-shape` told how many."""
    inputs = keras.Input((None,), name="ids")
    model = keras.Model(inputs, layers.Dense(7)(layers.Embedding(9, 4)(inputs)))
    specs = output_specs(model, input_specs(model, {"ids": (20,)}))
    assert shapes(specs) == ([None, 20, 7], "float32")
    assert shapes(target_specs(specs, "sparse_categorical_crossentropy")) == ([None, 20], "int32")


SCORES = tf.TensorSpec([None, 7, 4], tf.float32)
SPARSE = ([None, 7], "int32")
DENSE = ([None, 7, 4], "float32")


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("sparse_categorical_crossentropy", SPARSE),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), SPARSE),
        (keras.losses.sparse_categorical_crossentropy, SPARSE),
        ("mse", DENSE),
        (keras.losses.CategoricalCrossentropy(), DENSE),
        (lambda y, p: p, DENSE),
        (None, DENSE),
    ],
)
def test_targets_of_one_output(loss: Any, expected: Any) -> None:
    assert shapes(target_specs(SCORES, loss)) == expected


def test_targets_of_several_outputs_follow_each_ones_loss() -> None:
    sparse = "sparse_categorical_crossentropy"
    assert shapes(target_specs([SCORES, SCORES], ["mse", sparse])) == [DENSE, SPARSE]
    assert shapes(target_specs([SCORES, SCORES], sparse)) == [SPARSE, SPARSE]
    # By key, in whatever order the losses were written.
    outputs = {"b": SCORES, "a": SCORES}
    assert shapes(target_specs(outputs, {"b": sparse, "a": "mse"})) == {"b": SPARSE, "a": DENSE}


def test_specs_of_values_leave_the_batch_open() -> None:
    values = (np.zeros((3, 2), np.float32), None, np.int32(1))
    assert shapes(tf.nest.flatten(specs_like(values))[::2]) == [([None, 2], "float32"), ([], "int32")]
    assert specs_like(values)[1] is None
