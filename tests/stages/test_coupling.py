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
AVERAGES = "each microbatch is normalised by itself and updates moving averages once (one)"
DRAWN = "random numbers are drawn anew for each microbatch"


def test_state_written_from_rows_is_a_moving_average() -> None:
    assert batch_coupling(graph(mix("x:0"), WRITE)) == (AVERAGES,)


def test_integers_that_random_ops_draw_from_are_a_random_state() -> None:
    draw = Op(name="draw", type="StatelessRandomUniformV2", layer="one", inputs=("read:0",), outputs=("draw:0",))
    assert batch_coupling(graph(draw, mix("read:0"), WRITE, dtype="int64")) == (f"{DRAWN} (one)",)


def test_a_counter_is_no_random_state() -> None:
    """It was said to draw random numbers."""
    counted = batch_coupling(graph(mix("read:0"), WRITE, dtype="int64"))
    assert counted == ("variables are updated once per microbatch (one)",)


def test_floats_written_from_themselves_are_state() -> None:
    assert batch_coupling(graph(mix("read:0"), WRITE)) == ("variables are updated once per microbatch (one)",)


@pytest.mark.parametrize(
    "write", [replace(WRITE, layer=""), replace(WRITE, phase=Phase.UPDATE)], ids=["a metric", "the optimizer"]
)
def test_what_no_layer_writes_in_its_forward_pass_is_no_coupling(write: Op) -> None:
    assert batch_coupling(graph(mix("x:0"), write)) == ()


def test_what_inference_draws_it_draws_for_each_microbatch() -> None:
    """Bug: variational autoencoders, which draw in inference too, failed their verification in microbatches."""
    draw = Op(name="draw", type="RandomUniform", layer="noise", outputs=("draw:0",), stateful=True)
    assert batch_coupling(graph(draw, training=False)) == (f"{DRAWN} (noise)",)


def test_reading_a_variable_is_no_coupling() -> None:
    assert batch_coupling(graph(mix("x:0"))) == ()


def test_only_draws_from_a_kept_state_are_random() -> None:
    draw = Op(name="draw", type="RandomUniform", layer="noise", outputs=("draw:0",), stateful=True)
    assert batch_coupling(graph(draw)) == (f"{DRAWN} (noise)",)
    fixed = replace(draw, type="StatelessRandomUniformV2", stateful=False)
    assert batch_coupling(graph(fixed)) == ()


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_mixes_rows_is_told_in_training_and_in_inference(training: bool) -> None:
    mixing = replace(graph(mix("x:0"), training=training), mixing_layer="pairs", mixing_op="MatMul")
    assert batch_coupling(mixing) == ("only the rows of a microbatch come together (pairs: MatMul)",)
    assert batch_coupling(mixing, replicas=True) == (
        "only the rows of a microbatch of one replica come together (pairs: MatMul)",
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
    averages, state, drawn = batch_coupling(step.graph)
    assert averages == AVERAGES.replace("one", "average")
    assert state == "variables are updated once per microbatch (spectral)"
    assert drawn.startswith(f"{DRAWN} (")
    names = drawn.partition(" (")[2].rstrip(")").split(", ")
    assert [name.split("/")[0] for name in names] == ["attention", "drop", "lstm", "noise"]


def test_many_layers_are_counted_in_one_sentence() -> None:
    """The page of a network with 53 batch normalizations listed 53 sentences."""
    writes = [replace(WRITE, name=f"write_{index}", layer=f"norm_{index}") for index in range(8)]
    (sentence,) = batch_coupling(graph(mix("x:0"), *writes))
    assert sentence.endswith(" once (norm_0, norm_1, norm_2, norm_3, norm_4 and 3 more)")
