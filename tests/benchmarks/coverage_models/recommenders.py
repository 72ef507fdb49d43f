"""Recommenders: two towers, DLRM, wide and deep, factorization."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import compiled, register

WIDTH = 8


@register("recommender/two-towers")
def two_towers() -> keras.Model:
    """Users and items, and the product of both."""
    user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int32", name="item")

    def tower(x: Any) -> Any:
        x = layers.Dense(16, activation="relu")(layers.Embedding(30, WIDTH)(x))
        return layers.UnitNormalization()(layers.Dense(WIDTH)(x))

    score = layers.Dot(axes=1)([tower(user), tower(item)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return compiled(keras.Model({"user": user, "item": item}, score), "adagrad", loss)


@register("recommender/two-towers-in-batch")
def in_batch() -> keras.Model:
    """Every user against every item of the batch: rows meet."""
    user, item = keras.Input((6,), name="user"), keras.Input((6,), name="item")
    left, right = (layers.Dense(WIDTH)(layers.Dense(16, activation="relu")(x)) for x in (user, item))
    return compiled(keras.Model([user, item], ops.matmul(left, ops.transpose(right))), loss="mse")


@register("recommender/dlrm", num_devices=3)
def dlrm() -> keras.Model:
    """Embeddings of categories and dense features, which interact in pairs."""
    dense = keras.Input((4,), name="numbers")
    categories = keras.Input((6,), dtype="int32", name="categories")
    parts = [layers.Dense(WIDTH, activation="relu")(layers.Dense(16, activation="relu")(dense))]
    parts += [layers.Embedding(20 + index, WIDTH)(categories[:, index]) for index in range(6)]
    stacked = ops.stack(parts, axis=1)
    pairs = layers.Flatten()(ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1))))
    x = layers.Dense(16, activation="relu")(layers.Concatenate()([pairs, parts[0]]))
    score = layers.Dense(1, activation="sigmoid")(x)
    return compiled(keras.Model([dense, categories], score), "adagrad", "binary_crossentropy")


@register("recommender/wide-and-deep")
def wide_and_deep() -> keras.Model:
    """A linear part and a deep part, added up, with two optimizers' worth of settings."""
    wide, deep = keras.Input((10,), name="wide"), keras.Input((4,), name="deep")
    x = layers.Dense(16, activation="relu")(deep)
    score = layers.Add()([layers.Dense(1, kernel_regularizer="l1")(wide), layers.Dense(1)(x)])
    return compiled(keras.Model((wide, deep), score), "ftrl", keras.losses.BinaryCrossentropy(from_logits=True))


@register("recommender/bag-of-items")
def bag() -> keras.Model:
    """Averages over the embeddings of what a user has seen, with weights."""
    seen = keras.Input((5,), dtype="int32", name="seen")
    weights = keras.Input((5,), name="weights")
    x = layers.Embedding(30, WIDTH, embeddings_regularizer="l2")(seen)
    x = ops.sum(x * weights[..., None], axis=1) / (ops.sum(ops.abs(weights), axis=1, keepdims=True) + 1e-3)
    return compiled(keras.Model([seen, weights], layers.Dense(30)(x)))
