"""Which layers do not compute the same in microbatches: by hand-made graphs, and for layers of Keras."""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from keras import layers

from cost_models.specs import TensorSpec
from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.signature import input_specs
from partitioner.ir.op_graph import Op, OpGraph, Phase, Tensor, Variable, VariableKind
from partitioner.ir.step import StepKind
from partitioner.stages.coupling import batch_coupling

SPEC = TensorSpec(shape=(2,), dtype="float32")


def graph(*ops: Op, dtype: str = "float32", training: bool = True) -> OpGraph:
    """`x`, then `read` of the variable `state`, then `ops`."""
    first = (
        Op(name="x", type="Placeholder", outputs=("x:0",)),
        Op(name="read", type="ReadVariableOp", variables=("state",), outputs=("read:0",), stateful=True),
    )
    every = (*first, *ops)
    return OpGraph(
        name="hand-made",
        batch_size=8,
        training=training,
        ops=every,
        tensors=tuple(Tensor(name=name, producer=op.name, spec=SPEC) for op in every for name in op.outputs),
        variables=(
            Variable(name="state", spec=TensorSpec(shape=(2,), dtype=dtype), kind=VariableKind.STATE, layer="one"),
        ),
        inputs=("x:0",),
    )


def mix(source: str) -> Op:
    return Op(name="mix", type="Mul", layer="one", inputs=("read:0", source), outputs=("mix:0",))


WRITE = Op(name="write", type="AssignVariableOp", layer="one", inputs=("mix:0",), variables=("state",), stateful=True)
AVERAGES = "one normalises each microbatch by itself and updates its moving averages once per microbatch"


def test_state_written_from_rows_is_a_moving_average() -> None:
    assert batch_coupling(graph(mix("x:0"), WRITE)) == (AVERAGES,)


def test_integers_written_from_themselves_are_a_random_state() -> None:
    assert batch_coupling(graph(mix("read:0"), WRITE, dtype="int64")) == ("one draws anew for each microbatch",)


def test_floats_written_from_themselves_are_state() -> None:
    assert batch_coupling(graph(mix("read:0"), WRITE)) == ("one updates its variables once per microbatch",)


@pytest.mark.parametrize(
    "write", [replace(WRITE, layer=""), replace(WRITE, phase=Phase.UPDATE)], ids=["a metric", "the optimizer"]
)
def test_what_no_layer_writes_in_its_forward_pass_is_no_coupling(write: Op) -> None:
    assert batch_coupling(graph(mix("x:0"), write)) == ()


def test_inference_changes_nothing() -> None:
    assert batch_coupling(graph(mix("x:0"), WRITE, training=False)) == ()


def test_reading_a_variable_is_no_coupling() -> None:
    assert batch_coupling(graph(mix("x:0"))) == ()


def test_only_draws_from_a_kept_state_are_random() -> None:
    draw = Op(name="draw", type="RandomUniform", layer="noise", outputs=("draw:0",), stateful=True)
    assert batch_coupling(graph(draw)) == ("noise draws anew for each microbatch",)
    fixed = replace(draw, type="StatelessRandomUniformV2", stateful=False)
    assert batch_coupling(graph(fixed)) == ()


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_mixes_rows_is_told_in_training_and_in_inference(training: bool) -> None:
    mixing = replace(graph(mix("x:0"), training=training), mixing_layer="pairs")
    assert batch_coupling(mixing) == ("pairs brings together the rows of a microbatch only",)
    assert batch_coupling(mixing, replicas=True) == (
        "pairs brings together the rows of a microbatch of one replica only",
    )


def test_a_layer_that_mixes_rows_and_keeps_statistics_of_them_is_told_once() -> None:
    assert batch_coupling(replace(graph(mix("x:0"), WRITE), mixing_layer="one")) == (AVERAGES,)


def test_layers_of_keras() -> None:
    inputs = keras.Input((6, 6, 2))
    x = layers.BatchNormalization(name="average")(inputs)
    x = layers.SpectralNormalization(layers.Conv2D(4, 3), name="spectral")(x)
    x = layers.LayerNormalization(name="rows")(layers.Reshape((16, 4))(x))
    x = layers.Dropout(0.1, name="drop")(layers.MultiHeadAttention(2, 4, dropout=0.1, name="attention")(x, x))
    x = layers.BatchNormalization(trainable=False, name="frozen")(x)
    x = layers.GaussianNoise(0.1, name="noise")(layers.LSTM(4, dropout=0.1, name="lstm")(x))
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    specs = (input_specs(model), tf.TensorSpec([None, 3], "float32"), None)
    step = capture_step(model, StepKind.TRAIN, specs, batch_size=8, objective=training_objective(model))
    sentences = [sentence.split(" ", 1) for sentence in batch_coupling(step.graph)]
    random = "draws anew for each microbatch"
    assert [(layer.split("/")[0], text) for layer, text in sentences] == [
        ("average", AVERAGES.removeprefix("one ")),
        ("spectral", "updates its variables once per microbatch"),
        ("attention", random),
        ("drop", random),
        ("lstm", random),
        ("noise", random),
    ]
