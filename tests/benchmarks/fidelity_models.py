"""The models of the fidelity benchmark: each a compiled Keras model, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.benchmarks.pipeline_workloads import Workload, batch, keras_model

CLASSES = 10
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


def _vgg(side: int, rows: int) -> Built:
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


def perceptron(width: int, depth: int, rows: int) -> Built:
    import keras
    from keras import layers

    hidden = [layers.Dense(width, activation="relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(CLASSES, activation="softmax")])
    return classifier(model, normal(rows, 784))


def _mixed(build: Callable[[], Built]) -> Built:
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


def _encoder(depth: int, width: int, length: int, rows: int) -> Built:
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(1000, width)(inputs)
    for _ in range(depth):
        y = layers.Dropout(0.1)(layers.MultiHeadAttention(width // 32, 32)(x, x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        y = layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    scores = layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    tokens = np.random.default_rng(0).integers(0, 1000, (rows, length)).astype(np.int32)
    return classifier(keras.Model(inputs, scores), tokens)


def workload(**sizes: Any) -> Built:
    sized = Workload(**sizes)
    return keras_model(sized), batch(sized)


MODELS: dict[str, Callable[[], Built]] = {
    "mlp-1024": partial(perceptron, 1024, 3, 256),
    "mlp-384-deep": partial(perceptron, 384, 12, 512),
    "dense-512": partial(workload, kind="dense", depth=8, width=512, batch_size=1024),
    "vgg": partial(_vgg, 48, 32),
    "resnet50": partial(application, "ResNet50", 64, 16),
    "densenet121": partial(application, "DenseNet121", 64, 8),
    "mobilenet-v2": partial(application, "MobileNetV2", 96, 16),
    "efficientnet-b0": partial(application, "EfficientNetB0", 64, 16),
    "convnext-tiny": partial(application, "ConvNeXtTiny", 64, 4),
    "xception": partial(application, "Xception", 71, 8),
    "encoder": partial(_encoder, 3, 192, 64, 16),
    "decoder-256": partial(workload, kind="decoder", depth=3, width=256, batch_size=8, length=64, vocabulary=512),
    "decoder-128": partial(workload, kind="decoder", depth=4, width=128, batch_size=16, length=96, vocabulary=1000),
    "lstm": partial(lstm, 128, 32, 32),
    "mlp-384-mixed": partial(_mixed, partial(perceptron, 384, 4, 256)),
}
