"""Small models that together use every mechanism of a placed model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
from keras import layers

from partitioner.options import Constraints, Parallelism, Step

ROWS = 16
_TOKENS, _LENGTH, _CLASSES, _SIDE, _WIDTH = 32, 8, 4, 8, 16

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A model, data for it, and how it is planned.

    Attributes:
        name: What it shows.
        build: Makes the model, compiled.
        data: A batch of `ROWS` rows.
        options: Keywords of `partitioner.plan`.
        is_split: Whether the first layer with weights is pinned to the first device, and the last one to the last.
        is_compiled: Whether XLA compiles its programs.
        least_devices: Devices that it takes.
    """

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], Batch]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_split: bool = True
    is_compiled: bool = False
    least_devices: int = 2

    def planned_with(self, model: keras.Model, devices: Sequence[str]) -> dict[str, Any]:
        """Keywords of `partitioner.plan` for some devices."""
        weighted = [layer.name for layer in model.layers if layer.weights]
        pins = {weighted[0]: devices[0], weighted[-1]: devices[-1]} if self.is_split else {}
        step, constraints = Step(jit_compile=self.is_compiled), Constraints(pins=pins)
        return {"devices": list(devices), "batch_size": ROWS, "step": step, "constraints": constraints, **self.options}


def _tokens() -> Batch:
    generator = np.random.default_rng(0)
    ids = generator.integers(0, _TOKENS, (ROWS, _LENGTH)).astype("int32")
    return ids, generator.integers(0, _CLASSES, ROWS).astype("int32")


def _images() -> Batch:
    generator = np.random.default_rng(1)
    images = generator.standard_normal((ROWS, _SIDE, _SIDE, 3)).astype("float32")
    return images, generator.integers(0, _CLASSES, ROWS).astype("int32")


def _vectors() -> Batch:
    generator = np.random.default_rng(2)
    return generator.standard_normal((ROWS, _WIDTH)).astype("float32"), generator.integers(0, _CLASSES, ROWS)


def _compiled(inputs: Any, outputs: Any, reduction: str = "sum_over_batch_size") -> keras.Model:
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.Adam(1e-3), loss)  # pyright: ignore[reportArgumentType]
    return model


def _encoder() -> keras.Model:
    inputs = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_TOKENS, _WIDTH, name="tokens")(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8, name="attention")(x, x)])
    x = layers.Dense(_WIDTH, activation="gelu", name="wide")(layers.LayerNormalization(name="norm")(x))
    return _compiled(inputs, layers.Dense(_CLASSES, name="scores")(layers.GlobalAveragePooling1D()(x)))


def _recurrent() -> keras.Model:
    inputs = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_TOKENS, 8, name="tokens")(inputs)
    x = layers.LSTM(8, return_sequences=True, name="first")(x)
    return _compiled(inputs, layers.Dense(_CLASSES, name="scores")(layers.LSTM(8, name="second")(x)))


def _convolutional() -> keras.Model:
    x = inputs = keras.Input((_SIDE, _SIDE, 3))
    for name, depth in (("first", 8), ("second", 16)):
        x = layers.Conv2D(depth, 3, padding="same", use_bias=False, name=f"{name}_convolution")(x)
        x = layers.ReLU()(layers.BatchNormalization(name=f"{name}_norm")(x))
    x = layers.Dropout(0.1, seed=1)(layers.GlobalAveragePooling2D()(x))
    return _compiled(inputs, layers.Dense(_CLASSES, name="scores")(x))


def _dense(reduction: str = "sum_over_batch_size") -> keras.Model:
    x = inputs = keras.Input((_WIDTH,))
    for name in ("first", "second", "third"):
        x = layers.Dense(32, activation="relu", name=name)(x)
    return _compiled(inputs, layers.Dense(_CLASSES, name="scores")(x), reduction)


def _half_precision() -> keras.Model:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return _dense()
    finally:
        keras.config.set_dtype_policy(before)


def _scheduled(schedule: str) -> dict[str, Any]:
    return {"microbatches": 4, "parallelism": Parallelism(schedule=schedule), "strategy": "layer-split"}


_ONE_PIECE = Mechanism(
    name="layer-split, one piece: convolutions, moving averages, random numbers",
    build=_convolutional,
    data=_images,
    options={"strategy": "layer-split", "microbatches": 1},
)
_GPIPE = Mechanism(
    name="gpipe: token ids and labels in int32", build=_encoder, data=_tokens, options=_scheduled("gpipe")
)
_ZB_H1 = Mechanism(
    name="zb-h1: gradients of weights by themselves", build=_encoder, data=_tokens, options=_scheduled("zb-h1")
)

MECHANISMS: tuple[Mechanism, ...] = (
    _ONE_PIECE,
    _GPIPE,
    _ZB_H1,
    *(
        replace(mechanism, name=f"compiled, {mechanism.name}", is_compiled=True)
        for mechanism in (_ONE_PIECE, _GPIPE, _ZB_H1)
    ),
    Mechanism(name="1f1b: loops", build=_recurrent, data=_tokens, options=_scheduled("1f1b")),
    Mechanism(
        name="1f1b: a loss that is a sum", build=lambda: _dense("sum"), data=_vectors, options=_scheduled("1f1b")
    ),
    Mechanism(name="gpipe: mixed_float16", build=_half_precision, data=_vectors, options=_scheduled("gpipe")),
    Mechanism(
        name="mirrored: gradients summed",
        build=_convolutional,
        data=_images,
        options={"strategy": "mirrored"},
        is_split=False,
    ),
    Mechanism(
        name="mixed: replicas of two stages",
        build=_dense,
        data=_vectors,
        options={"strategy": "mixed", "replicas": 2},
        is_split=False,
        least_devices=4,
    ),
    Mechanism(
        name="async: updates one by one",
        build=_dense,
        data=_vectors,
        options={"strategy": "mirrored", "parallelism": Parallelism(updates="async")},
        is_split=False,
    ),
)
