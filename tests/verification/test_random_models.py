"""Random Functional models (branches, shared layers, dtypes, loops) are planned and placed, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from keras import layers

import partitioner
from tests.twins import cpus

ROWS, STEPS, WIDTH = 8, 4, 6
Draw = Callable[[Any], Any]

_TO_VECTOR = {
    "dense": lambda draw: layers.Dense(draw(st.sampled_from([WIDTH, 9])), activation=draw(_ACTIVATIONS)),
    "half": lambda draw: layers.Dense(WIDTH, activation=draw(_ACTIVATIONS), dtype="mixed_bfloat16"),
    "layer_norm": lambda _: layers.LayerNormalization(),
    "batch_norm": lambda _: layers.BatchNormalization(),
    "dropout": lambda _: layers.Dropout(0.2, seed=1),
    "highway": lambda _: layers.Rescaling(0.5, offset=0.1),
}
_TO_SEQUENCE = {
    "conv": lambda _: layers.Conv1D(WIDTH, 2, padding="causal"),
    "lstm": lambda _: layers.LSTM(WIDTH, return_sequences=True),
    "gru": lambda _: layers.Bidirectional(layers.GRU(WIDTH // 2, return_sequences=True)),
    "each": lambda _: layers.TimeDistributed(layers.Dense(WIDTH)),
    "layer_norm": lambda _: layers.LayerNormalization(),
}
_ACTIVATIONS = st.sampled_from(["relu", "gelu", "tanh", "softmax", None])


@st.composite
def functional_models(draw: Draw) -> keras.Model:
    """A model with a vector and, if a layer needs it, a sequence of tokens as inputs."""
    vector = keras.Input((WIDTH,), name="vector")
    tokens = keras.Input((STEPS,), dtype="int32", name="tokens")
    sequence = layers.Embedding(3, WIDTH, name="embedding")(tokens)
    vectors, sequences, shared = [vector], [sequence], layers.Dense(WIDTH, name="shared")
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["vector", "sequence", "shared", "join", "attend", "pool"]))
        one, other = draw(st.sampled_from(vectors)), draw(st.sampled_from(vectors))
        long = draw(st.sampled_from(sequences))
        if kind == "vector":
            vectors.append(_TO_VECTOR[draw(st.sampled_from(sorted(_TO_VECTOR)))](draw)(one))
        elif kind == "sequence":
            sequences.append(_TO_SEQUENCE[draw(st.sampled_from(sorted(_TO_SEQUENCE)))](draw)(long))
        elif kind == "shared":
            vectors.append(shared(one if one.shape[-1] == WIDTH else vector))
        elif kind == "join":
            merge = layers.Add() if one.shape == other.shape else layers.Concatenate()
            vectors.append(merge([one, other]))
        elif kind == "attend":
            sequences.append(layers.MultiHeadAttention(2, 3)(long, draw(st.sampled_from(sequences))))
        else:
            vectors.append(layers.GlobalAveragePooling1D()(long))
    everything = layers.Concatenate()([*vectors, layers.GlobalMaxPooling1D()(sequences[-1])])
    model = keras.Model({"vector": vector, "tokens": tokens}, layers.Dense(2, dtype="float32")(everything))
    model.compile(draw(st.sampled_from(["sgd", "adam", "rmsprop"])), "mse")
    return model


@given(
    model=functional_models(),
    training=st.booleans(),
    microbatches=st.sampled_from([1, 2]),
    count=st.sampled_from([2, 3]),
)
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],  # a failure prints its model; to shrink it would take an hour
    suppress_health_check=list(HealthCheck),
)
def test_a_random_model_is_placed_and_computes_the_same(
    model: keras.Model, training: bool, microbatches: int, count: int
) -> None:
    placed = partitioner.auto_place(
        model,
        cpus(count),
        batch_size=ROWS,
        strategy="layer-split",
        microbatches=microbatches,
        time_limit=5,
        step=partitioner.Step(training=training),
    )
    verification = partitioner.verify(model, placed, num_steps=2)
    assert verification.passed, [(layer.name, type(layer).__name__) for layer in model.layers]
    keras.backend.clear_session()
