"""The models whose training throughput others have published, as they were trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

CLASSES = 1000
WORDS, POSITIONS = 30522, 512  # of BERT in English, uncased


def _image_side(size: str) -> int:
    return int(size.partition("x")[0])


def _application(name: str) -> Callable[[str], keras.Model]:
    def build(size: str) -> keras.Model:
        side = _image_side(size)
        return getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=CLASSES)

    return build


def resnet50_v1_5(size: str) -> keras.Model:
    """ResNet50 as NVIDIA trains it: blocks that shrink the image do so in their 3x3 convolution, not in the first."""
    side = _image_side(size)

    def normed(x: Any, filters: int, kernel: int, stride: int = 1, activation: str | None = "relu") -> Any:
        x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        return layers.Activation(activation)(x) if activation else x

    inputs = keras.Input((side, side, 3))
    x = layers.MaxPooling2D(3, 2, padding="same")(normed(inputs, 64, 7, 2))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            shortcut = normed(x, 4 * width, 1, stride, activation=None) if block == 0 else x
            y = normed(normed(x, width, 1), width, 3, stride)
            x = layers.ReLU()(layers.Add()([normed(y, 4 * width, 1, activation=None), shortcut]))
    x = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x))


def bert_large(size: str) -> keras.Model:
    """BERT-large that answers questions: scores of where an answer begins and ends, for each token."""
    length, width, heads = int(size.split()[0]), 1024, 16
    tokens, segments = (keras.Input((length,), dtype="int32", name=name) for name in ("tokens", "segments"))
    positions = layers.Embedding(POSITIONS, width)(keras.ops.arange(length)[None])
    x = layers.Embedding(WORDS, width)(tokens) + layers.Embedding(2, width)(segments) + positions
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(24):
        y = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(0.1)(y))
        y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(x))
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(0.1)(y))
    return keras.Model([tokens, segments], layers.Softmax(axis=1, dtype="float32")(layers.Dense(2)(x)))


MODELS: dict[str, Callable[[str], keras.Model]] = {
    "inceptionv3": _application("InceptionV3"),
    "resnet50": resnet50_v1_5,
    "resnet152": _application("ResNet152"),
    "vgg16": _application("VGG16"),
    "efficientnetb4": _application("EfficientNetB4"),
    "bertlarge384": bert_large,
}
"""By name in the file of rows; each takes the row's `input`."""

OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "sgd momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-4),
}
"""By how the row's `optimizer` begins; the longest name counts."""


def compiled(model: str, size: str, optimizer: str, precision: str) -> keras.Model:
    """A model of a row, ready to be planned. TensorFlow computes float32 in TF32 where a GPU can."""
    keras.config.set_dtype_policy("mixed_float16" if precision == "mixed_float16" else "float32")
    built = MODELS[model](size)
    name = max((name for name in OPTIMIZERS if optimizer.startswith(name)), key=len)
    loss = "sparse_categorical_crossentropy"
    if model.startswith("bert"):
        loss = keras.losses.SparseCategoricalCrossentropy(axis=1)  # of where it begins and ends, among the tokens
    built.compile(OPTIMIZERS[name](), loss, jit_compile=False)
    return built
