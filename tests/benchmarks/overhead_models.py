"""The models of the overhead benchmark: a compiled Keras model, and a batch for it, for each name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.benchmarks.fidelity_models import CLASSES, Built, application, classifier, lstm, normal, perceptron, workload
from tests.benchmarks.pipeline_workloads import Workload, batch
from tests.benchmarks.two_towers import NUM_FEATURES, towers

VOCABULARY = 512


def _gated_decoder(depth: int, width: int, length: int, rows: int) -> Built:
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


def _unet(side: int, rows: int) -> Built:
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


def _vision(depth: int, width: int, side: int, rows: int) -> Built:
    """A Transformer over patches of images, with GELU."""
    import keras
    from keras import layers

    inputs = keras.Input((side, side, 3))
    x = layers.Reshape((-1, width))(layers.Conv2D(width, 4, strides=4)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(width // 32, 32)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return classifier(keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x)), normal(rows, side, side, 3))


def _bidirectional(kind: str, units: int, length: int, rows: int) -> Built:
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


def _two_towers(width: int, depth: int, rows: int) -> Built:
    return classifier(towers(width, depth), normal(rows, NUM_FEATURES))


_decoder = partial(workload, kind="decoder", vocabulary=VOCABULARY, length=64, batch_size=8)

MODELS: dict[str, Callable[[], Built]] = {
    "mlp 784-128-10": partial(perceptron, 128, 1, 64),
    "dense": partial(workload, kind="dense", depth=8, width=512, batch_size=512),
    "two towers": partial(_two_towers, 512, 4, 256),
    "resnet50 64x64": partial(application, "ResNet50", 64, 8),
    "efficientnet-b0 64x64": partial(application, "EfficientNetB0", 64, 8),
    "u-net 64x64": partial(_unet, 64, 4),
    "vision transformer": partial(_vision, 4, 128, 32, 8),
    "decoder, GELU, 2 x 128": partial(_decoder, depth=2, width=128),
    "decoder, GELU, 8 x 256": partial(_decoder, depth=8, width=256),
    "decoder, GELU by tanh, 4 x 256": partial(_decoder, depth=4, width=256, approximate=True),
    "decoder, gated SiLU, 4 x 256": partial(_gated_decoder, 4, 256, 64, 8),
    "lstm": partial(lstm, 128, 32, 32),
    "bidirectional lstm": partial(_bidirectional, "LSTM", 64, 32, 32),
    "bidirectional gru": partial(_bidirectional, "GRU", 64, 32, 32),
}
