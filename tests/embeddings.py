"""A model that embeds tokens, and sentences whose tokens are in one microbatch, in several or in none."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tests import models

ROWS = 16


def tokens(step: int, rows: int = ROWS, microbatches: int = 4) -> np.ndarray:
    """Sentences in which tokens occur twice in a row, in one microbatch only, in all of them, or not in this step."""
    part = np.arange(rows)[:, None] * microbatches // rows
    everywhere, own = np.full((rows, 2), 0), np.repeat(1 + part, 2, axis=1)
    shared = 6 + part // 2 + np.arange(rows)[:, None] % 2
    return (np.concatenate([everywhere, own, shared, shared], axis=1) + 7 * step) % models.TOKENS


def embedded() -> keras.Model:
    """Tokens by their embeddings, then dense layers."""
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 8, name="embedding")(inputs)
    x = layers.Dense(8, activation="tanh", name="hidden")(layers.Flatten(name="flat")(x))
    return keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x))
