"""Convolutions of every kind, normalizations, dropouts, poolings, resizings, and networks made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import Built, Random, classifier, compiled, register, register_all

SIDE = 16


def stack(shape: Sequence[int], make_layers: Callable[[], Sequence[Any]]) -> keras.Model:
    """Layers one after the other, and a classifier."""
    x = inputs = keras.Input(tuple(shape))
    for layer in make_layers():
        x = layer(x)
    return classifier(inputs, layers.Flatten()(x) if len(x.shape) > 2 else x)


_STACKS: dict[str, tuple[Sequence[int], Callable[[], Sequence[Any]]]] = {
    "conv1d": (
        (24, 4),
        lambda: [
            layers.Conv1D(8, 3, padding="causal", activation="relu"),
            layers.SeparableConv1D(8, 3, padding="same"),
            layers.DepthwiseConv1D(3),
            layers.MaxPooling1D(),
            layers.ZeroPadding1D(2),
            layers.Cropping1D(1),
            layers.UpSampling1D(2),
            layers.AveragePooling1D(2),
        ],
    ),
    "conv1d-transpose": (
        (8, 4),
        lambda: [layers.Conv1DTranspose(8, 3, strides=2), layers.Conv1DTranspose(4, 3, padding="same")],
    ),
    "conv2d-transpose": (
        (8, 8, 4),
        lambda: [
            layers.Conv2DTranspose(8, 3, strides=2, padding="same", output_padding=1),
            layers.Conv2DTranspose(4, 3),
        ],
    ),
    "conv3d": (
        (6, 8, 8, 2),
        lambda: [
            layers.Conv3D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling3D(),
            layers.Conv3DTranspose(4, 2, strides=2),
            layers.AveragePooling3D(2),
            layers.Conv3D(4, 2, dilation_rate=2, padding="same"),
            layers.GlobalAveragePooling3D(),
        ],
    ),
    "grouped": (
        (SIDE, SIDE, 4),
        lambda: [
            layers.Conv2D(8, 3, groups=2),
            layers.DepthwiseConv2D(3, depth_multiplier=2),
            layers.SeparableConv2D(8, 3, strides=2, padding="same"),
            layers.Conv2D(8, 3, dilation_rate=2, padding="same"),
            layers.GlobalMaxPooling2D(),
        ],
    ),
    "normalizations": (
        (8, 8, 8),
        lambda: [
            layers.GroupNormalization(4),
            layers.Conv2D(8, 3),
            layers.LayerNormalization(axis=[1, 2, 3]),
            layers.SpectralNormalization(layers.Conv2D(8, 3)),
            layers.UnitNormalization(),
            layers.GroupNormalization(-1),
            layers.BatchNormalization(renorm=False, scale=False),
        ],
    ),
    "spectral": ((12,), lambda: [layers.SpectralNormalization(layers.Dense(8), power_iterations=2), layers.ReLU()]),
    "batch-normalization-synchronized": ((12,), lambda: [layers.Dense(8), layers.BatchNormalization(momentum=0.5)]),
    "dropouts": (
        (8, 8, 4),
        lambda: [
            layers.SpatialDropout2D(0.2, seed=1),
            layers.GaussianDropout(0.2, seed=2),
            layers.Conv2D(4, 3),
            layers.AlphaDropout(0.2, seed=3),
            layers.GaussianNoise(0.1, seed=4),
            layers.Dropout(0.3, noise_shape=(None, 1, 1, 4), seed=5),
        ],
    ),
    "activations": (
        (12,),
        lambda: [
            *(layers.Dense(8, activation=name) for name in ("elu", "selu", "softplus", "softsign", "swish", "mish")),
            *(layers.Dense(8, activation=name) for name in ("hard_sigmoid", "log_softmax", "leaky_relu", "relu6")),
            *(
                layers.Dense(8, activation=name)
                for name in ("celu", "tanh_shrink", "hard_tanh", "squareplus", "exponential")
            ),
            layers.PReLU(),
            layers.LeakyReLU(),
            layers.ELU(),
            layers.Softmax(),
        ],
    ),
    "resizings": (
        (12, 12, 3),
        lambda: [
            layers.Rescaling(1 / 255),
            layers.Resizing(16, 16, interpolation="bicubic"),
            layers.UpSampling2D(interpolation="bilinear"),
            layers.CenterCrop(20, 20),
            layers.Conv2D(4, 3),
            layers.Resizing(9, 9, interpolation="nearest"),
            layers.ZeroPadding2D(1),
            layers.Cropping2D(2),
        ],
    ),
    "adaptive-pooling": (
        (12, 12, 3),
        lambda: [layers.Conv2D(4, 3), layers.AdaptiveAveragePooling2D(3), layers.AdaptiveMaxPooling2D(2)],
    ),
    "augmentation": (
        (SIDE, SIDE, 3),
        lambda: [
            layers.RandomFlip(seed=1),
            layers.RandomRotation(0.1, seed=2),
            layers.RandomZoom(0.1, seed=3),
            layers.RandomContrast(0.1, seed=4),
            layers.RandomBrightness(0.1, seed=5),
            layers.RandomCrop(12, 12, seed=6),  # in inference, Keras lets images of its size pass as they are
            layers.Conv2D(4, 3),
            layers.GlobalAveragePooling2D(),
        ],
    ),
    "spectrogram": ((256, 1), lambda: [layers.STFTSpectrogram("real", 32, 16, 32), layers.Conv1D(4, 3)]),
    "mel-spectrogram": (
        (512,),
        lambda: [layers.MelSpectrogram(fft_length=64, sequence_stride=32, num_mel_bins=8), layers.Dense(4)],
    ),
}

register_all("layers", {name: partial(stack, *parts) for name, parts in _STACKS.items()})


@register("vision/u-net", num_devices=3)
def u_net() -> keras.Model:
    """A U-Net with skips across its whole depth."""
    x = inputs = keras.Input((SIDE, SIDE, 3))
    skips = []
    for channels in (4, 8):
        x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(x)))
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    for channels, skip in zip((8, 4), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(channels, 2, strides=2)(x)
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(layers.Concatenate()([x, skip]))
    return compiled(keras.Model(inputs, layers.Conv2D(3, 1)(x)))


@register("vision/mlp-mixer")
def mixer() -> keras.Model:
    """Dense layers over patches and over channels in turns."""
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 4, strides=4)(inputs))
    for _ in range(2):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(16)(layers.Dense(32, activation="gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        x = layers.Add()([x, layers.Dense(8)(layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x)))])
    return classifier(inputs, layers.GlobalAveragePooling1D()(x))


@register("sound/wavenet")
def wavenet() -> keras.Model:
    """Dilated causal convolutions with gates and skips."""
    x = inputs = keras.Input((64, 1))
    x = layers.Conv1D(8, 1)(x)
    skips = []
    for dilation in (1, 2, 4, 8):
        gate = layers.Conv1D(8, 2, dilation_rate=dilation, padding="causal", activation="sigmoid")(x)
        value = layers.Conv1D(8, 2, dilation_rate=dilation, padding="causal", activation="tanh")(x)
        y = layers.Conv1D(8, 1)(layers.Multiply()([gate, value]))
        skips.append(y)
        x = layers.Add()([x, y])
    x = layers.Conv1D(16, 1)(layers.ReLU()(layers.Add()(skips)))
    return compiled(keras.Model(inputs, x))


@register("vision/squeeze-excite")
def squeeze_excite() -> keras.Model:
    """Channels weighted by what the whole image says."""
    x = inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(8, 3, activation="swish")(x)
    weights = layers.Dense(8, activation="sigmoid")(layers.Dense(2, activation="relu")(ops.mean(x, axis=(1, 2))))
    x = x * layers.Reshape((1, 1, 8))(weights)
    return classifier(inputs, layers.GlobalAveragePooling2D()(x))


@register("vision/detector")
def detector() -> keras.Model:
    """A pyramid of features with two heads on each level: classes and boxes."""
    x = inputs = keras.Input((32, 32, 3))
    levels = []
    for channels in (8, 16):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", activation="relu")(x)
        levels.append(layers.Conv2D(8, 1)(x))
    top = levels[-1]
    pyramid = [layers.Add()([levels[0], layers.UpSampling2D()(top)]), top]
    kinds = layers.Conv2D(4, 3, padding="same", name="kinds_of_level")
    boxes = layers.Conv2D(4, 3, padding="same", name="boxes_of_level")
    outputs = {
        "boxes": layers.Concatenate(axis=1, name="boxes")([layers.Reshape((-1, 4))(boxes(level)) for level in pyramid]),
        "kinds": layers.Concatenate(axis=1, name="kinds")([layers.Reshape((-1, 4))(kinds(level)) for level in pyramid]),
    }
    model = keras.Model(inputs, outputs)
    focal = keras.losses.BinaryFocalCrossentropy(from_logits=True)
    model.compile("adam", {"boxes": keras.losses.Huber(), "kinds": focal}, loss_weights={"boxes": 2.0, "kinds": 0.5})
    return model


@register("vision/diffusion")
def diffusion() -> Built:
    """A denoising U-Net with group normalization, an embedding of the time, and attention in the middle."""
    image, when = keras.Input((8, 8, 4), name="image"), keras.Input((), name="time")
    angles = when[:, None] * ops.exp(-ops.arange(4, dtype="float32"))
    time = layers.Dense(16, activation="silu")(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1))

    def residual(x: Any) -> Any:
        y = layers.Conv2D(16, 3, padding="same")(ops.silu(layers.GroupNormalization(4)(x)))
        y = y + layers.Dense(16)(time)[:, None, None]
        return x + layers.Conv2D(16, 3, padding="same")(ops.silu(layers.GroupNormalization(4)(y)))

    x = first = residual(layers.Conv2D(16, 3, padding="same")(image))
    x = residual(layers.Conv2D(16, 3, strides=2, padding="same")(x))
    flat = layers.Reshape((16, 16))(x)
    x = x + layers.Reshape((4, 4, 16))(layers.MultiHeadAttention(2, 8)(flat, flat))
    x = layers.Conv2D(16, 1)(layers.Concatenate()([layers.UpSampling2D()(x), first]))
    model = compiled(keras.Model([image, when], layers.Conv2D(4, 3, padding="same")(residual(x))), loss="mse")
    random = Random()
    return Built(model=model, inputs=[random.normal(8, 8, 4), random.normal()])


@register("vision/channels-first", modes=("inference",))
def channels_first() -> keras.Model:
    """Layers with the channels first."""
    x = inputs = keras.Input((3, SIDE, SIDE))
    x = layers.Conv2D(4, 3, data_format="channels_first", padding="same")(x)
    x = layers.BatchNormalization(axis=1)(x)
    return classifier(inputs, layers.GlobalAveragePooling2D(data_format="channels_first")(x))
