"""Builders of the Keras models that benchmarks run: each makes a compiled model, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.pipeline_workloads import Workload, batch, keras_model
from tests.benchmarks.two_towers import NUM_FEATURES, towers

CLASSES, VOCABULARY = 10, 512
Built = tuple[Any, tuple[Any, Any]]


def labels(rows: int) -> Any:
    return np.random.default_rng(1).integers(0, CLASSES, rows)


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def classifier(model: Any, x: Any, optimizer: Any = "adam") -> Built:
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    return model, (x, labels(len(x)))


def application(name: str, side: int, rows: int) -> Built:
    import keras

    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=CLASSES)
    return classifier(model, normal(rows, side, side, 3))


def vgg(side: int, rows: int) -> Built:
    import keras
    from keras import layers

    x = inputs = keras.Input((side, side, 3))
    for channels in (32, 64, 128, 256):
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(256, activation="relu")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))
    return classifier(model, normal(rows, side, side, 3), keras.optimizers.SGD(0.01, momentum=0.9))


def convolutions(rows: int) -> Built:
    import keras
    from keras import layers

    x = inputs = keras.Input((28, 28, 1))
    for filters in (16, 32):
        x = layers.MaxPooling2D()(layers.Conv2D(filters, 3, activation="relu", padding="same")(x))
    scores = layers.Dense(CLASSES, activation="softmax")(layers.Flatten()(x))
    return classifier(keras.Model(inputs, scores), normal(rows, 28, 28, 1))


def perceptron(width: int, depth: int, rows: int) -> Built:
    import keras
    from keras import layers

    hidden = [layers.Dense(width, activation="relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(CLASSES, activation="softmax")])
    return classifier(model, normal(rows, 784))


def mixed_float16(build: Callable[[], Built]) -> Built:
    """Weights in float32, arithmetic in float16, and a scaled loss."""
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        return build()
    finally:
        keras.config.set_dtype_policy("float32")


def lstm(units: int, length: int, rows: int) -> Built:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((length, 64)),
            layers.LSTM(units, return_sequences=True),
            layers.LSTM(units),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return classifier(model, normal(rows, length, 64))


def encoder(depth: int, width: int, length: int, rows: int, *, dropout: float = 0.1) -> Built:
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(1000, width)(inputs)
    for _ in range(depth):
        y = layers.Dropout(dropout)(layers.MultiHeadAttention(width // 32, 32)(x, x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        y = layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    scores = layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    tokens = np.random.default_rng(0).integers(0, 1000, (rows, length)).astype(np.int32)
    return classifier(keras.Model(inputs, scores), tokens)


def workload(**sizes: Any) -> Built:
    sized = Workload(**sizes)
    return keras_model(sized), batch(sized)


def gated_decoder(depth: int, width: int, length: int, rows: int) -> Built:
    """A decoder of root-mean-square norms, grouped queries and gated linear units with SiLU, as Llama's."""
    import keras
    from keras import layers

    x = inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(VOCABULARY, width)(x)
    for _ in range(depth):
        y = layers.RMSNormalization()(x)
        x = x + layers.GroupQueryAttention(32, width // 32, width // 64)(y, y, use_causal_mask=True)
        y = layers.RMSNormalization()(x)
        gate = layers.Dense(3 * width, activation="silu", use_bias=False)(y)
        x = x + layers.Dense(width, use_bias=False)(gate * layers.Dense(3 * width, use_bias=False)(y))
    model: Any = keras.Model(inputs, layers.Dense(VOCABULARY, use_bias=False)(layers.RMSNormalization()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    sizes: dict[str, Any] = {
        "depth": depth,
        "width": width,
        "batch_size": rows,
        "length": length,
        "vocabulary": VOCABULARY,
    }
    return model, batch(Workload(kind="decoder", **sizes))


def unet(side: int, rows: int) -> Built:
    import keras
    from keras import layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(x)))
        return x

    x = inputs = keras.Input((side, side, 3))
    skips = []
    for channels in (16, 32, 64):
        skips.append(x := twice(x, channels))
        x = layers.MaxPooling2D()(x)
    x = twice(x, 128)
    for channels, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(channels, 2, strides=2)(x)
        x = twice(layers.Concatenate()([x, skip]), channels)
    model: Any = keras.Model(inputs, layers.Conv2D(3, 1)(x))
    model.compile("adam", "mse", jit_compile=False)
    return model, (normal(rows, side, side, 3), normal(rows, side, side, 3))


def vision_transformer(depth: int, width: int, side: int, rows: int, *, dropout: float = 0.1) -> Built:
    """A Transformer over patches of images, with GELU."""
    import keras
    from keras import layers

    inputs = keras.Input((side, side, 3))
    x = layers.Reshape((-1, width))(layers.Conv2D(width, 4, strides=4)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(width // 32, 32)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(dropout)(layers.Dense(width)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return classifier(keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x)), normal(rows, side, side, 3))


def bidirectional(kind: str, units: int, length: int, rows: int) -> Built:
    import keras
    from keras import layers

    cell = getattr(layers, kind)
    model = keras.Sequential(
        [
            keras.Input((length, 64)),
            layers.Bidirectional(cell(units, return_sequences=True)),
            layers.Bidirectional(cell(units)),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return classifier(model, normal(rows, length, 64))


def two_towers(width: int, depth: int, rows: int) -> Built:
    return classifier(towers(width, depth), normal(rows, NUM_FEATURES))
