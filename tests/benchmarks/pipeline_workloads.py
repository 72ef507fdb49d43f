"""The models of the pipeline benchmark, and a batch for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A stack of equal blocks.

    Attributes:
        kind: `dense` (each block a Dense with ReLU; mean squared error, SGD) or `decoder` (pre-norm causal Transformer
            blocks between an embedding and a projection to the vocabulary; cross-entropy, Adam).
        depth: Number of blocks.
        width: Features of every block.
        batch_size: Rows per step.
        length: Tokens per row, of a decoder.
        vocabulary: Tokens that a decoder knows.
        approximate: Whether a decoder's GELU is the approximation by a tanh, as in GPT-2.
    """

    kind: str
    depth: int
    width: int
    batch_size: int
    length: int = 0
    vocabulary: int = 0
    approximate: bool = False

    @property
    def text(self) -> str:
        """The sizes, for a title."""
        tokens = f", {self.length} tokens per row" if self.length else ""
        return f"{self.depth} blocks of width {self.width}, batch {self.batch_size}{tokens}"

    @property
    def num_heads(self) -> int:
        """Attention heads of 64 features each."""
        return max(self.width // 64, 1)


# As many rows as make an eighth of them about as fast by the row as all: on an AMD EPYC, TensorFlow's products of 256
# or 640 rows of 1024 take twice as long by the row as those of 768, and of 512 a third longer for 512 rows than for
# 640, oneDNN's too. No tensor has 32 MiB, from which on the C library gives memory back to the system after every op.
WORKLOADS = {
    "dense-512": Workload(kind="dense", depth=8, width=512, batch_size=5120),
    "dense-1024": Workload(kind="dense", depth=8, width=1024, batch_size=6144),
    "decoder": Workload(kind="decoder", depth=6, width=256, batch_size=32, length=128, vocabulary=512),
}


def batch(workload: Workload) -> tuple[Any, Any]:
    """Inputs and targets."""
    generator = np.random.default_rng(0)
    if workload.kind == "dense":
        shape = (workload.batch_size, workload.width)
        return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)
    tokens = generator.integers(0, workload.vocabulary, (workload.batch_size, workload.length + 1))
    return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)


def keras_model(workload: Workload, scope: Callable[[int], Any] = lambda _: contextlib.nullcontext()) -> Any:
    """The compiled Keras model, with block i built inside `scope(i)`."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    if workload.kind == "dense":
        x = inputs = keras.Input((workload.width,))
        for index in range(workload.depth):
            with scope(index):
                x = layers.Dense(workload.width, activation="relu", name=f"block_{index}")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
        return model
    gelu = partial(keras.activations.gelu, approximate=workload.approximate)
    inputs = keras.Input((workload.length,), dtype="int32")
    with scope(0):
        x = layers.Embedding(workload.vocabulary, workload.width, name="tokens")(inputs)
    for index in range(workload.depth):
        with scope(index):
            y = layers.LayerNormalization(name=f"norm_a_{index}")(x)
            attention = layers.MultiHeadAttention(workload.num_heads, 64, name=f"attention_{index}")
            x = layers.Add(name=f"add_a_{index}")([x, attention(y, y, use_causal_mask=True)])
            y = layers.LayerNormalization(name=f"norm_b_{index}")(x)
            y = layers.Dense(4 * workload.width, activation=gelu, name=f"up_{index}")(y)
            y = layers.Dense(workload.width, name=f"down_{index}")(y)
            x = layers.Add(name=f"add_b_{index}")([x, y])
    with scope(workload.depth - 1):
        x = layers.LayerNormalization(name="norm")(x)
        x = layers.Dense(workload.vocabulary, name="head")(x)
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    return model
