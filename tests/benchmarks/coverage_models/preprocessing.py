"""Inputs that are text or whole numbers, and layers that prepare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.benchmarks.coverage_models.registry import classifier, register, register_all

WORDS = ["0", "1", "a", "b"]


def of_texts(make_layers: Callable[[], list[Any]]) -> Callable[[], keras.Model]:
    """Two strings per row, through layers."""

    def build() -> keras.Model:
        x = inputs = keras.Input((2,), dtype="string")
        for layer in make_layers():
            x = layer(x)
        x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
        return classifier(inputs, layers.Dense(8)(x))

    return build


def of_numbers(make_layers: Callable[[], list[Any]]) -> Callable[[], keras.Model]:
    """Four whole numbers per row, through layers."""

    def build() -> keras.Model:
        x = inputs = keras.Input((4,), dtype="int32")
        for layer in make_layers():
            x = layer(x)
        x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
        return classifier(inputs, layers.Dense(8)(x))

    return build


register_all(
    "preprocessing",
    {
        "hashing": of_texts(lambda: [layers.Hashing(8), layers.Embedding(8, 4)]),
        "hashing-salted": of_texts(lambda: [layers.Hashing(8, salt=[7, 8]), layers.CategoryEncoding(8)]),
        "string-lookup": of_texts(lambda: [layers.StringLookup(vocabulary=WORDS), layers.Embedding(8, 4)]),
        "string-lookup-one-hot": of_texts(
            lambda: [layers.StringLookup(vocabulary=WORDS, output_mode="multi_hot", num_oov_indices=2)]
        ),
        "integer-lookup": of_numbers(lambda: [layers.IntegerLookup(vocabulary=[1, 2, 3]), layers.Embedding(6, 4)]),
        "category-encoding": of_numbers(lambda: [layers.CategoryEncoding(4, output_mode="count")]),
        "discretization": of_numbers(
            lambda: [layers.Discretization(bin_boundaries=[0.5, 1.5], output_mode="one_hot")],
        ),
    },
)


@register("preprocessing/normalization")
def normalization() -> keras.Model:
    """Means and variances learned from data."""
    inputs = keras.Input((6,))
    scaler = layers.Normalization()
    scaler.adapt(np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32))
    return classifier(inputs, layers.Dense(8, activation="relu")(scaler(inputs)))


@register("preprocessing/text-vectorization")
def text_vectorization() -> keras.Model:
    """Sentences split into words."""
    inputs = keras.Input((), dtype="string")
    words = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=4)
    x = layers.Embedding(8, 4, mask_zero=True)(words(inputs))
    return classifier(inputs, layers.Dense(8, activation="relu")(layers.GlobalAveragePooling1D()(x)))


@register("preprocessing/crossing")
def crossing() -> keras.Model:
    """Two features hashed together."""
    left, right = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
    x = layers.HashedCrossing(num_bins=8, output_mode="one_hot")((left, right))
    return classifier([left, right], layers.Dense(8, activation="relu")(x))


@register("preprocessing/feature-space")
def all_kinds() -> keras.Model:
    """A table with columns of all kinds, by name."""
    inputs = {
        "age": keras.Input((1,), name="age"),
        "city": keras.Input((1,), dtype="string", name="city"),
        "count": keras.Input((1,), dtype="int32", name="count"),
        "flag": keras.Input((1,), dtype="bool", name="flag"),
    }
    parts = [
        layers.Normalization(mean=0.5, variance=2.0)(inputs["age"]),
        layers.StringLookup(vocabulary=WORDS, output_mode="one_hot")(inputs["city"]),
        layers.CategoryEncoding(4)(inputs["count"]),
        keras.ops.cast(inputs["flag"], "float32"),
    ]
    return classifier(inputs, layers.Dense(8, activation="relu")(layers.Concatenate()(parts)))
