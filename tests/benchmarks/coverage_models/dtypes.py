"""Dtypes other than float32: mixed precision, float64, whole numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import layers

from tests.benchmarks.coverage_models.applications import application
from tests.benchmarks.coverage_models.convolutions import mixer, u_net
from tests.benchmarks.coverage_models.registry import classifier, compiled, register, register_all
from tests.benchmarks.coverage_models.transformers import decoder, encoder, rotary


def in_policy(policy: str, build: Callable[[], Any]) -> Any:
    """A model built under a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return build()
    finally:
        keras.config.set_dtype_policy(before)


def convolutional() -> keras.Model:
    """Convolutions, batch normalization, pooling, a dense head in float32."""
    x = inputs = keras.Input((16, 16, 3))
    for channels in (4, 8):
        x = layers.Conv2D(channels, 3, use_bias=False)(x)
        x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.GlobalAveragePooling2D()(layers.Activation("gelu")(x))
    return classifier(inputs, x, dtype="float32")


def recurrent() -> keras.Model:
    """An LSTM over an embedding."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.LSTM(8)(layers.GRU(8, return_sequences=True)(layers.Embedding(20, 8)(inputs)))
    return classifier(inputs, x)


def in_float64() -> keras.Model:
    """Inputs and weights of 64 bits."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        return in_policy("float64", convolutional_64)
    finally:
        keras.config.set_floatx(before)


def convolutional_64() -> keras.Model:
    """Convolutions and dense layers throughout."""
    x = inputs = keras.Input((12, 12, 3), dtype="float64")
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, activation="relu")(x))
    return classifier(inputs, layers.Flatten()(x))


_BUILDERS = {"conv": convolutional, "recurrent": recurrent, "encoder": encoder, "decoder": decoder, "rotary": rotary}
_BUILDERS |= {"u-net": u_net, "mixer": mixer, "convnext": partial(application, "ConvNeXtTiny")}
_BUILDERS |= {"mobilenet": partial(application, "MobileNetV2")}

for _policy in ("mixed_bfloat16", "mixed_float16"):
    _named = {f"{_policy.removeprefix('mixed_')}-{name}": build for name, build in _BUILDERS.items()}
    register_all("dtype", {name: partial(in_policy, _policy, build) for name, build in _named.items()})
register("dtype/float64")(in_float64)
register("dtype/bfloat16-pure")(partial(in_policy, "bfloat16", convolutional))


def quantized(mode: str) -> keras.Model:
    """Dense layers and an embedding, quantized after they were built."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 16)(inputs)
    x = layers.EinsumDense("btd,de->bte", (6, 16))(layers.Dense(16, activation="relu")(x))
    model = classifier(inputs, layers.Flatten()(x))
    model.quantize(mode)
    return compiled(model)


register_all("dtype", {mode: partial(quantized, mode) for mode in ("int8", "int4", "float8")}, modes=("inference",))
register("dtype/float8-training", modes=("training",))(partial(quantized, "float8"))


@register("dtype/bfloat16-one-layer")
def one_layer() -> keras.Model:
    """One layer in bfloat16 between others in float32."""
    inputs = keras.Input((12,))
    x = layers.Dense(16, activation="relu")(inputs)
    x = layers.LayerNormalization()(layers.Dense(16, dtype="bfloat16")(x))
    return classifier(inputs, x)
