"""verify finds what is wrong (device, number, NaN), passes what is right, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from asking import asked
from keras import layers

import partitioner
from partitioner.emit.graph.function import emit_function
from partitioner.ir.devices import short_name
from partitioner.ir.execution import Execution
from partitioner.ir.plan import Verification
from partitioner.verification import verify_placed
from partitioner.verification.compare import compared, difference, outputs_only, relative_differences
from partitioner.verification.data import as_dense, random_batches
from partitioner.verification.reference import Trajectory, nudged, restored

THIRD = "/job:localhost/replica:0/task:0/device:CPU:3"


def place(model: keras.Model, **options: Any) -> Any:
    return partitioner.auto_place(
        model, **asked(devices=["CPU:1", "CPU:2"], batch_size=8, strategy="layer-split", time_limit=5, **options)
    )


def verify_with(placed: Any, emit: Callable[..., Any], **options: Any) -> Verification:
    """verify, with `emit` in place of the real emission."""
    program = placed.program
    kind, specs = program.signatures()[0]
    step = program.step(kind, specs)
    return verify_placed(
        placed.model,
        step,
        program.execution(step),
        emit,
        emit,
        compute_loss=placed._compute_loss if placed.compiled else None,
        optimizer=placed.optimizer if placed.compiled else None,
        ran_on=program.devices,
        num_steps=2,
        **options,
    )


def elsewhere(execution: Execution, op: str) -> Execution:
    """The execution with one op on a third device."""
    return replace(execution, placement={**execution.placement, op: THIRD})


@pytest.fixture(scope="module")
def placed() -> Any:
    keras.utils.set_random_seed(0)
    return place(models.mlp())


def test_a_faithful_emission_passes(placed: Any) -> None:
    found = verify_with(placed, emit_function)
    assert found.passed
    assert found.misplaced_ops == ()
    assert found.weights_max_rel_diff <= 1e-6


def test_an_op_on_another_device_is_named(placed: Any) -> None:
    (op,) = [name for name in placed.plan.placement if name.endswith("hidden_1_1/MatMul")]
    found = verify_with(placed, lambda step, execution, **how: emit_function(step, elsewhere(execution, op), **how))
    assert not found.passed
    (line,) = found.misplaced_ops
    assert f"/{op} (" in line
    assert line.endswith(f"planned on {short_name(placed.plan.placement[op])}, ran on CPU:3")
    assert found.gradients_max_rel_diff <= 1e-6


def test_a_changed_constant_is_found(placed: Any) -> None:
    def emit(step: Any, placement: Any, **how: Any) -> Any:
        (rate,) = [n for n in step.graph_def.node if n.name.endswith("hidden_0_1/Gelu/mul/x")]
        original = rate.attr["value"].tensor.SerializeToString()
        rate.attr["value"].tensor.float_val[:] = [0.5001]  # gelu's 0.5
        try:
            return emit_function(step, placement, **how)
        finally:
            rate.attr["value"].tensor.ParseFromString(original)

    found = verify_with(placed, emit)
    assert not found.passed
    assert found.misplaced_ops == ()
    assert 1e-5 < found.outputs_max_rel_diff < 1e-2
    assert found.weights_max_rel_diff > 1e-5


class Spare(layers.Layer):
    """Has a weight that it does not use."""

    def build(self, _: Any) -> None:
        self.add_weight(shape=(3,), name="spare")

    def call(self, x: Any) -> Any:
        return x


def test_a_gradient_is_named_by_its_variable_though_one_before_has_none() -> None:
    """Bug: where a variable has no gradient, those behind it had the name of the variable before theirs."""
    hidden = layers.Dense(6, "gelu", name="hidden")
    model = keras.Sequential([keras.Input((models.WIDTH,)), Spare(), hidden, layers.Dense(models.CLASSES)])
    subject = place(models.compiled(model))

    def emit(step: Any, placement: Any, **how: Any) -> Any:
        (rate,) = [n for n in step.graph_def.node if n.name.endswith("hidden_1/Gelu/mul/x")]
        rate.attr["value"].tensor.float_val[:] = [0.51]
        return emit_function(step, placement, **how)

    found = verify_with(subject, emit)
    assert any(line.startswith(f"gradients of {hidden.kernel.path} ") for line in found.unexplained)
    assert not any("spare" in line for line in found.unexplained)


def test_an_update_that_does_not_happen_is_found(placed: Any) -> None:
    def emit(step: Any, placement: Any, **how: Any) -> Any:
        return emit_function(step, placement, **{**how, "side_effects": False})

    found = verify_with(placed, emit)
    assert not found.passed
    assert found.gradients_max_rel_diff <= 1e-6
    assert found.weights_max_rel_diff > 1e-3
    paths = [variable.path for variable in placed.variables]
    assert found.unexplained
    assert all(any(line.startswith(f"weights of {path} ") for path in paths) for line in found.unexplained)


def test_the_same_nan_on_both_sides_is_equal_and_one_alone_is_infinitely_wrong() -> None:
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert difference(nan, nan, np.max) == 0.0
    assert difference(nan, one, np.max) == np.inf
    assert difference(one, nan, np.max) == np.inf
    assert relative_differences([nan], [one]) == [np.inf]
    assert difference(np.array([np.inf]), np.array([np.inf]), np.max) == 0.0
    assert difference(np.array([np.inf]), np.array([-np.inf]), np.max) == np.inf


def test_relative_difference_is_by_norm_and_per_tensor() -> None:
    # |(3, 4) - (3, 3)| / |(3, 3)| = 1 / sqrt(18); nothing over nothing counts as equal.
    found = [np.array([3.0, 4.0]), np.zeros(2), np.ones(1)]
    expected = [np.array([3.0, 3.0]), np.zeros(2), np.zeros(1)]
    assert relative_differences(found, expected) == [pytest.approx(1 / np.sqrt(18)), 0.0, np.inf]


def test_a_difference_passes_near_any_of_the_controls() -> None:
    """Bug: a faithful model (LoRA, in microbatches) was said to be wrong, because one control had rounded less."""
    expected, placed, little, much = (outputs_only([np.full(3, value)]) for value in (1.0, 1.0012, 1.0001, 1.0004))
    told: dict[str, Any] = {"audit": (1, ()), "ran_on": {}, "num_steps": 0}
    assert not compared(placed, expected, [little], **told).passed
    found = compared(placed, expected, [little, much], **told)
    assert found.passed
    assert found.control_max_rel_diff == pytest.approx(4e-4)
    assert found.control_max_abs_diff == pytest.approx(4e-4)


def test_what_a_control_explains_is_named_apart_from_the_rest() -> None:
    def run(zero_but_for_rounding: float, other: float) -> Trajectory:
        weights = [np.full(3, zero_but_for_rounding), np.full(3, other)]
        return Trajectory(outputs=[], loss=[], gradients=[], weights=weights)

    expected, control, placed = run(1e-9, 1.0), run(-1e-9, 1.0), run(3e-9, 1.0 + 1e-6)
    names = {"weights": ["key/bias", "key/kernel"]}
    found = compared(placed, expected, [control], (1, ()), {}, num_steps=1, names=names)
    assert found.passed
    assert found.explained == ("weights of key/bias 2.0e+00 (control 2.0e+00)",)
    assert found.other_max_rel_diff == pytest.approx(1e-6)
    assert found.weights_max_rel_diff == pytest.approx(2.0)


def test_what_is_nothing_but_rounding_in_the_placed_run_passes_where_that_rounds_otherwise() -> None:
    """Bug: gradients that are zero but for rounding have, on a GPU, other digits than the host's control explains."""
    expected, control, placed = (outputs_only([np.full(3, value)]) for value in (1e-9, 1.01e-9, 5e-9))
    told: dict[str, Any] = {"audit": (1, ()), "ran_on": {}, "num_steps": 0}
    found = compared(placed, expected, [control], **told)
    assert not found.passed
    assert found.unexplained == ("outputs 0 4.0e+00 (control 1.0e-02)",)
    steady, other = (outputs_only([np.full(3, value)]) for value in (5.001e-9, -2e-9))
    assert not compared(placed, expected, [control], again=steady, **told).passed
    assert compared(placed, expected, [control], again=other, **told).passed


def test_a_model_that_yields_nan_passes_when_both_do() -> None:
    inputs = keras.Input((models.WIDTH,))
    outputs = layers.Dense(models.CLASSES)(layers.Lambda(lambda x: tf.math.log(-tf.abs(x)))(inputs))
    found = verify_with(place(models.compiled(keras.Model(inputs, outputs), "sgd")), emit_function)
    assert found.passed
    assert found.outputs_max_abs_diff == 0.0


def test_gradients_that_are_zero_but_for_rounding_do_not_fail_a_model_with_random_state() -> None:
    """A key's bias shifts all scores of a row alike, so softmax ignores it: its gradient is rounding noise alone, and
    its relative difference about 1."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 8)(inputs)
    x = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=1)(x, x)
    x = layers.Dense(models.CLASSES)(layers.GlobalAveragePooling1D()(x))
    found = verify_with(place(models.compiled(keras.Model(inputs, x))), emit_function)
    assert found.passed
    assert found.control_max_rel_diff > 1e-3


def test_gradients_of_a_scaled_loss_are_compared_with_scaled_ones() -> None:
    found = verify_with(place(models.float16()), emit_function)
    assert found.passed
    assert found.gradients_max_rel_diff <= 1e-3


def test_a_part_of_a_batch_overflows_in_float16_no_sooner_than_the_whole_batch() -> None:
    """Bug: the reference differentiated each part's mean loss, and overflowed where the placed model did not.

    A row's gradient is at most the loss scale over the rows of the mean: 2^15 of four rows fit, 2^17 of one do not.
    """
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((models.WIDTH,), dtype="float16")
    x = layers.Dense(16, activation="relu", name="hidden", dtype="mixed_float16")(x)
    model = keras.Model(inputs, layers.Dense(models.CLASSES, name="scores", dtype="mixed_float16")(x))
    models.compiled(model, keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=2.0**17))
    pins = {"hidden": "CPU:1", "scores": "CPU:2"}
    plan = partitioner.plan(model, **asked(devices=["CPU:1", "CPU:2"], batch_size=4, microbatches=4, pins=pins))
    found = partitioner.verify(model, partitioner.place(model, plan), num_steps=3)
    assert found.passed, found
    assert found.gradients_max_rel_diff <= 1e-3


def test_verify_leaves_variables_optimizer_and_seeds_as_they_were() -> None:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((models.WIDTH,))
    for width in (16, 8):
        x = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(width)(x)))
    model = models.compiled(keras.Model(inputs, keras.layers.Dense(models.CLASSES)(x)))
    placed = place(model)
    placed.fit(*models.vectors(16), batch_size=8, verbose=0)
    held = [*model.variables, *placed.optimizer.variables]
    before = [variable.numpy() for variable in held]
    assert any("seed" in variable.path for variable in held)
    partitioner.verify(model, placed, num_steps=2)
    for variable, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def test_verify_of_inference() -> None:
    model = models.resnet()
    placed = place(model, training=False)
    found = partitioner.verify(model, placed)
    assert found.passed
    assert found.num_steps == 0
    assert found.num_ops_checked > 10


def test_verify_wants_the_model_itself(placed: Any) -> None:
    with pytest.raises(partitioner.UsageError, match="made from"):
        partitioner.verify(models.mlp(), placed)


def test_restored_puts_values_back_even_after_an_error() -> None:
    variable = keras.Variable(1.0)
    with pytest.raises(RuntimeError), restored([variable]) as restore:
        variable.assign(2.0)
        restore()
        assert float(variable) == 1.0
        variable.assign(3.0)
        raise RuntimeError
    assert float(variable) == 1.0


def test_nudged_starts_one_unit_in_the_last_place_off() -> None:
    variable = keras.Variable(np.float32([1.0, -1.0, 0.0]))
    nudged(lambda: variable.assign([1.0, -1.0, 0.0]), [variable])()
    # Neighbours of 1 and -1 in binary32: 2^-23 above, 2^-24 above.
    np.testing.assert_array_equal(variable.numpy()[:2], np.float32([1 + 2**-23, -1 + 2**-24]))


def test_random_batches_are_valid_for_every_dtype_and_repeat() -> None:
    specs = {
        "floats": tf.TensorSpec([None, 3], tf.bfloat16),
        "tokens": tf.TensorSpec([None], tf.int64),
        "mask": tf.TensorSpec([None, 2], tf.bool),
        "texts": tf.TensorSpec([None], tf.string),
        "waves": tf.TensorSpec([None, 2], tf.complex64),
        "none": None,
    }
    (first,), (again,) = random_batches(specs, 4, 1, 0), random_batches(specs, 4, 1, 0)
    assert {key: None if v is None else (v.dtype.name, tuple(v.shape)) for key, v in first.items()} == {
        "floats": ("bfloat16", (4, 3)),
        "tokens": ("int64", (4,)),
        "mask": ("bool", (4, 2)),
        "texts": ("string", (4,)),
        "waves": ("complex64", (4, 2)),
        "none": None,
    }
    assert set(first["tokens"].numpy()) <= {0, 1}
    np.testing.assert_array_equal(first["tokens"], again["tokens"])
    assert set(first["texts"].numpy()) <= {b"0", b"1"}
    with pytest.raises(partitioner.UsageError, match="no random values can be made for an input of dtype variant"):
        random_batches(tf.TensorSpec([None], tf.variant), 4, 1, 0)


def test_sparse_gradients_add_up_per_row() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2]), tf.constant([3, 1]))
    np.testing.assert_array_equal(as_dense(rows, (3, 1)), [[2.0], [0.0], [5.0]])


def test_a_ctc_loss_whose_functions_call_each_other_the_old_way() -> None:
    inputs = keras.Input((6, 4))
    x = layers.LSTM(5, return_sequences=True)(inputs)
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile("sgd", keras.losses.CTC())
    labels = np.array([[1, 2, 3], [2, 1, 1]] * 4, "int32")
    split = place(model, microbatches=1, example_targets=labels)
    assert partitioner.verify(model, split, num_steps=2).passed


def test_a_model_of_frozen_layers_only() -> None:
    model = models.mlp()
    model.trainable = False
    model.compile("sgd", model.loss)
    assert partitioner.verify(model, place(model), num_steps=2).passed


class Remembering(layers.Layer):
    """Adds the sum of all calls before."""

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, x: Any) -> Any:
        before = tf.identity(self.total.value)
        self.total.assign_add(tf.reduce_sum(tf.abs(x)))
        return x + before


def test_verify_of_inference_with_state_starts_every_run_from_the_same() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), Remembering(name="remembering"), layers.Dense(2)])
    model(np.ones((2, 4), "float32"))
    before = float(model.layers[1].total)
    verification = partitioner.verify(model, place(model, training=False, microbatches=1))
    assert verification.passed
    assert verification.outputs_max_rel_diff < 1e-5
    assert float(model.layers[1].total) == before


def orthogonal() -> keras.Model:
    """A penalty on a stage of its own, whose gradient needs a product of constants that its value needs, too."""
    x = inputs = keras.Input((models.WIDTH,))
    for width in (16, 16, 8, 8):
        x = layers.Dense(width, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(1e-2))(x)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES)(x)))


@pytest.mark.parametrize("build", [orthogonal, models.branching])
def test_what_stages_do_each_for_themselves_is_not_misplaced(build: Callable[[], keras.Model]) -> None:
    """Bugs: a product of two constants that two stages compute was said to be on the wrong one of them, and what hands
    a tensor to a branch to be on a device of which nothing is planned."""
    model = build()
    verification = partitioner.verify(model, place(model, microbatches=2), num_steps=1)
    assert verification.misplaced_ops == ()
    assert verification.passed
