"""The models whose training throughput others have published, as they were trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import keras
import tensorflow as tf
from keras import layers

CLASSES = 1000
WORDS, POSITIONS = 30522, 512  # of BERT in English, uncased


def _image_side(size: str) -> int:
    return int(size.partition("x")[0])


def _normalised(layer: Any, images: Any, training: bool | None = None, mask: Any = None) -> Any:
    """Batch normalisation by TensorFlow's own op, as publishers trained; Keras 3 computes it in a dozen ops."""
    if not training:
        return layers.BatchNormalization.call(layer, images, training=training, mask=mask)
    gamma = tf.ones((images.shape[-1],)) if layer.gamma is None else tf.convert_to_tensor(layer.gamma)
    made, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=gamma,
        offset=tf.convert_to_tensor(layer.beta),
        mean=tf.zeros((0,)),
        variance=tf.zeros((0,)),
        epsilon=layer.epsilon,
    )
    for average, new in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        average.assign(average * layer.momentum + new * (1 - layer.momentum))
    return made


def _with_fused_batch_norm(model: keras.Model) -> keras.Model:
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.call = MethodType(_normalised, layer)
    return model


def application(build: Callable[..., Any], size: str) -> keras.Model:
    """A model of `keras.applications`."""
    side = _image_side(size)
    return _with_fused_batch_norm(build(weights=None, input_shape=(side, side, 3), classes=CLASSES))


def _conv(
    x: Any, filters: int, kernel: int, stride: int = 1, *, padding: str = "same", activation: str = "relu"
) -> Any:
    """A convolution with a bias."""
    return layers.Conv2D(filters, kernel, stride, padding=padding, activation=activation)(x)


def resnet(blocks: tuple[int, ...], size: str, *, groups: int = 1, width: int = 64) -> keras.Model:
    """ResNet v1.5: blocks that shrink the image do so in their 3x3 convolution, and no convolution has a bias.

    NVIDIA trains this one, and the TensorFlow benchmarks since May 2017. With `groups` it is a ResNeXt.
    """
    side = _image_side(size)

    def normed(x: Any, filters: int, kernel: int, stride: int = 1, *, groups: int = 1, relu: bool = True) -> Any:
        x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False, groups=groups)(x)
        x = layers.BatchNormalization()(x)
        return layers.ReLU()(x) if relu else x

    inputs = keras.Input((side, side, 3))
    x = layers.MaxPooling2D(3, 2, padding="same")(normed(inputs, 64, 7, 2))
    for stage, count in enumerate(blocks):
        inner, outer = width * 2**stage, 256 * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            shortcut = normed(x, outer, 1, stride, relu=False) if block == 0 else x
            y = normed(normed(x, inner, 1), inner, 3, stride, groups=groups)
            x = layers.ReLU()(layers.Add()([normed(y, outer, 1, relu=False), shortcut]))
    x = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return _with_fused_batch_norm(keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x)))


def alexnet(size: str) -> keras.Model:
    """AlexNet as in the TensorFlow benchmarks (tf_cnn_benchmarks, alexnet_model.py): without groups, images of 227."""
    side = _image_side(size)
    side = 227 if side == 224 else side
    inputs = keras.Input((side, side, 3))
    x = layers.MaxPooling2D(3, 2)(_conv(inputs, 64, 11, 4, padding="valid"))
    x = layers.MaxPooling2D(3, 2)(_conv(x, 192, 5))
    x = layers.MaxPooling2D(3, 2)(_conv(_conv(_conv(x, 384, 3), 384, 3), 256, 3))
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(4096, activation="relu")(x))
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(layers.Dense(CLASSES)(x)))


def unet(size: str) -> keras.Model:
    """U-Net for medical images (Ronneberger et al., 2015), as NVIDIA trains it: no padding, two classes of pixels."""
    side = _image_side(size)
    inputs = keras.Input((side, side, 1))

    def twice(x: Any, filters: int) -> Any:
        return _conv(_conv(x, filters, 3, padding="valid"), filters, 3, padding="valid")

    x, skipped = inputs, []
    for depth in range(4):
        x, side = twice(x, 64 << depth), side - 4
        skipped.append((x, side))
        x, side = layers.MaxPooling2D(2)(x), side // 2
    x, side = layers.Dropout(0.5)(twice(x, 1024)), side - 4
    for depth in reversed(range(4)):
        x, side = layers.Conv2DTranspose(64 << depth, 3, 2, padding="same", activation="relu")(x), 2 * side
        before, its_side = skipped[depth]
        x = layers.Concatenate()([layers.Cropping2D((its_side - side) // 2)(before), x])
        x, side = twice(x, 64 << depth), side - 4
    return keras.Model(inputs, layers.Softmax(dtype="float32")(_conv(x, 2, 1, activation="linear")))


def _gelu(x: Any) -> Any:
    """GELU by a hyperbolic tangent, as in the code of BERT."""
    return keras.activations.gelu(x, approximate=True)


def _encoder_block(x: Any, width: int, heads: int, inner: int, activation: Any) -> Any:
    y = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
    x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(0.1)(y))
    y = layers.Dense(width)(layers.Dense(inner, activation=activation)(x))
    return layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(0.1)(y))


def bert(depth: int, width: int, heads: int, size: str) -> keras.Model:
    """BERT that answers questions: scores of where an answer begins and where it ends, over the tokens."""
    length = int(size.split()[0])
    tokens, segments = (keras.Input((length,), dtype="int32", name=name) for name in ("tokens", "segments"))
    positions = layers.Embedding(POSITIONS, width)(keras.ops.expand_dims(keras.ops.arange(length), 0))
    x = layers.Embedding(WORDS, width)(tokens) + layers.Embedding(2, width)(segments) + positions
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(depth):
        x = _encoder_block(x, width, heads, 4 * width, _gelu)
    scores = layers.Permute((2, 1))(layers.Dense(2)(x))
    return keras.Model([tokens, segments], layers.Softmax(dtype="float32")(scores))


def transformer(width: int, heads: int, size: str) -> keras.Model:
    """Transformer that translates (Vaswani et al., 2017): six blocks each way, sentences of equal lengths."""
    length, words = int(size.split()[0]), 33708
    source, target = (keras.Input((length,), dtype="int32", name=name) for name in ("source", "target"))
    embedding = layers.Embedding(words, width)
    x, y = embedding(source), embedding(target)
    for _ in range(6):
        x = _encoder_block(x, width, heads, 4 * width, "relu")
    for _ in range(6):
        z = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(y + layers.Dropout(0.1)(z))
        z = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, x)
        y = layers.LayerNormalization()(y + layers.Dropout(0.1)(z))
        z = layers.Dense(width)(layers.Dense(4 * width, activation="relu")(y))
        y = layers.LayerNormalization()(y + layers.Dropout(0.1)(z))
    return keras.Model([source, target], layers.Softmax(dtype="float32")(layers.Dense(words, use_bias=False)(y)))


MODELS: dict[str, Callable[[str], keras.Model]] = {
    **{
        name.lower(): partial(application, build)
        for name, build in vars(keras.applications).items()
        if callable(build) and name[0].isupper()
    },
    "resnet50": partial(resnet, (3, 4, 6, 3)),
    "resnet101": partial(resnet, (3, 4, 23, 3)),
    "resnet152": partial(resnet, (3, 8, 36, 3)),
    "resnext101": partial(resnet, (3, 4, 23, 3), groups=32, width=128),
    "alexnet": alexnet,
    "unet": unet,
    "bertbase": partial(bert, 12, 768, 12),
    "bertlarge": partial(bert, 24, 1024, 16),
    "transformerbase": partial(transformer, 512, 8),
    "transformerbig": partial(transformer, 1024, 16),
}
MODELS |= {
    "inception3": MODELS["inceptionv3"],
    "mobilenetv1": MODELS["mobilenet"],
    "transformer": MODELS["transformerbase"],
}
"""By name in the file of rows, without a length of sentences at its end; each takes the row's `input`."""

OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "sgd momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-4),
    "lamb": lambda: keras.optimizers.Lamb(1e-4),
}
"""By how the row's `optimizer` begins; the longest name counts."""


def model_named(name: str) -> Callable[[str], keras.Model]:
    """The builder of a row's model: `bertlarge384` is `bertlarge` and says its length again in `input`."""
    plain = name.lower().replace("-", "").replace("_", "")
    return MODELS.get(plain) or MODELS[re.sub(r"\d+$", "", plain)]


def compiled(model: str, size: str, optimizer: str, precision: str) -> keras.Model:
    """A model of a row, ready to be planned. TensorFlow computes float32 in TF32 where a GPU can."""
    keras.config.set_dtype_policy("mixed_float16" if precision == "mixed_float16" else "float32")
    built = model_named(model)(size)
    name = max((name for name in OPTIMIZERS if optimizer.startswith(name)), key=len)
    built.compile(OPTIMIZERS[name](), "sparse_categorical_crossentropy")
    return built
