"""Small compiled models with everything that has broken a partitioner before; the command line takes them too:
`partition tests/models.py:mlp --devices CPU:0,CPU:1`.

`DATA` says what each is trained on. Layers have explicit seeds, so two builds after `set_random_seed` are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

CLASSES = 4
WIDTH = 12
SIDE = 8
TOKENS = 20
LENGTH = 6

MODELS: dict[str, Callable[[], keras.Model]] = {}
DATA: dict[str, Callable[[int], tuple[Any, Any]]] = {}


def vectors(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(rows)
    return generator.standard_normal((rows, WIDTH), np.float32), generator.integers(0, CLASSES, rows)


def images(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(rows)
    return generator.standard_normal((rows, SIDE, SIDE, 2), np.float32), generator.integers(0, CLASSES, rows)


def sentences(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(rows)
    return generator.integers(0, TOKENS, (rows, LENGTH)), generator.integers(0, CLASSES, rows)


def texts(rows: int) -> tuple[Any, Any]:
    """Sentences whose target is a token at every position."""
    generator = np.random.default_rng(rows)
    return generator.integers(0, TOKENS, (rows, LENGTH)), generator.integers(0, TOKENS, (rows, LENGTH))


def dict_pairs(rows: int) -> tuple[Any, Any]:
    (left, kind), (right, _) = vectors(rows), vectors(rows + 1)
    return {"left": left, "right": right[:rows]}, {"kind": kind, "size": left[:, :1]}


def list_pairs(rows: int) -> tuple[Any, Any]:
    x, y = dict_pairs(rows)
    return tuple(x.values()), tuple(y.values())


def _case(data: Callable[[int], tuple[Any, Any]]) -> Callable[[Any], Any]:
    def register(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
        MODELS[build.__name__] = build
        DATA[build.__name__] = data
        return build

    return register


def compiled(model: keras.Model, optimizer: Any = "adam", *, weighted: bool = True) -> keras.Model:
    """`model` with logits over classes, trained on class numbers."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"] if weighted else None,
        jit_compile=False,
    )
    return model


def dense_stack(depth: int = 3, **options: Any) -> keras.Model:
    inputs = keras.Input((WIDTH,))
    x = inputs
    for index in range(depth):
        x = layers.Dense(16, activation="gelu", name=f"hidden_{index}", **options)(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="scores", dtype="float32")(x))


@_case(vectors)
def mlp() -> keras.Model:
    return compiled(dense_stack())


@_case(images)
def cnn() -> keras.Model:
    return compiled(
        keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 2)),
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3, padding="same"),
                layers.Conv2D(8, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        ),
        keras.optimizers.SGD(0.05),
    )


@_case(images)
def resnet() -> keras.Model:
    """Batch normalization: moving averages, and gradients through batch statistics."""
    inputs = keras.Input((SIDE, SIDE, 2))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for _ in range(2):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(4, 3, padding="same", use_bias=False)(y)
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(x)), keras.optimizers.SGD(0.05, momentum=0.9))


class Positions(layers.Layer):
    """Adds what the model learns of each position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(LENGTH, 8)

    def build(self, shape: Any) -> None:
        self.embedding.build((LENGTH,))

    def call(self, x: Any) -> Any:
        return x + self.embedding(ops.arange(LENGTH))


@_case(sentences)
def transformer() -> keras.Model:
    """Four encoder blocks: sparse embedding gradients, attention, dropout with random state."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(TOKENS, 8)(inputs))
    for index in range(4):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=index)(y, y)
        x = layers.Add()([x, layers.Dropout(0.1, seed=10 + index)(y)])
        y = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(8)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(x)))


@_case(vectors)
def two_towers() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    branches = []
    for name in ("a", "b"):
        x = inputs
        for index in range(4):
            x = layers.Dense(WIDTH, activation="tanh", name=f"{name}_{index}")(x)
        branches.append(x)
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(layers.Concatenate()(branches))))


def _pair_model(structure: Callable[..., Any]) -> keras.Model:
    left, right = keras.Input((WIDTH,), name="left"), keras.Input((WIDTH,), name="right")
    x = layers.Dense(8, activation="relu")(layers.Concatenate()([left, right]))
    kind, size = (
        layers.Dense(CLASSES, name="kind")(x),
        layers.Dense(1, name="size")(layers.Subtract()([left, right])),
    )
    return keras.Model(structure(left=left, right=right), structure(kind=kind, size=size))


@_case(dict_pairs)
def dict_of_outputs() -> keras.Model:
    model = _pair_model(dict)
    kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", {"kind": kind, "size": "mse"}, loss_weights={"kind": 1.0, "size": 0.3}, jit_compile=False)
    return model


@_case(list_pairs)
def list_of_outputs() -> keras.Model:
    model = _pair_model(lambda **parts: list(parts.values()))
    model.compile("adam", [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"], jit_compile=False)
    return model


class Subclassed(keras.Model):
    """Layers made in a constructor, wired in `call`, which Keras cannot see into."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(16, activation="relu")
        self.drop = layers.Dropout(0.2, seed=3)
        self.last = layers.Dense(CLASSES)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.first(inputs)
        return self.last(self.drop(hidden, training=training) + hidden)


@_case(vectors)
def subclassed() -> keras.Model:
    return compiled(Subclassed())


@_case(images)
def nested() -> keras.Model:
    encoder = keras.Sequential([keras.Input((SIDE, SIDE, 2)), layers.Conv2D(4, 3), layers.Flatten()], name="encoder")
    classifier = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(CLASSES)], name="classifier")
    inputs = keras.Input((SIDE, SIDE, 2))
    return compiled(keras.Model(inputs, classifier(encoder(inputs))))


@_case(vectors)
def siamese() -> keras.Model:
    """One layer called twice: its gradient is a sum over both calls."""
    inputs = keras.Input((WIDTH,))
    shared = layers.Dense(WIDTH, activation="relu", name="shared")
    middle = layers.Dense(WIDTH, name="middle")
    x = layers.Subtract()([shared(inputs), shared(middle(inputs))])
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(x)))


def skipping() -> keras.Model:
    """Three parts, of which the second and the last read what the first one makes."""
    inputs = keras.Input((WIDTH,))
    first = layers.Dense(8, activation="tanh", name="part_0")(inputs)
    x = layers.Dense(8, activation="tanh", name="part_1")(first)
    both = layers.Concatenate(name="part_2")([x, first])
    return compiled(keras.Model(inputs, layers.Dense(CLASSES, name="part_2_scores")(both)))


class Counts(layers.Layer):
    """Counts its calls in training: whole numbers that no random op reads."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
        return x


class Unembed(layers.Layer):
    """Scores over tokens by the very matrix that embeds them."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding

    def call(self, x: Any) -> Any:
        return ops.matmul(x, ops.transpose(self.embedding.embeddings))


@_case(texts)
def tied() -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.Embedding(TOKENS, 8)
    x = layers.Dense(8, activation="tanh")(embedding(inputs))
    return compiled(keras.Model(inputs, Unembed(embedding)(x)))


@_case(sentences)
def lstm() -> keras.Model:
    """While loops, and their gradients."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, 6)(inputs)
    x = layers.LSTM(6, return_sequences=True)(x)
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(layers.LSTM(6)(x))))


@_case(sentences)
def bidirectional_gru() -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Bidirectional(layers.GRU(5))(layers.Embedding(TOKENS, 6)(inputs))
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(x)))


class Branch(layers.Layer):
    """A branch taken by the values of the batch, with a weight in only one arm."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return ops.cond(ops.sum(x) > 0, lambda: x * self.scale, lambda: x - 1.0)


@_case(vectors)
def branching() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    x = Branch()(layers.Dense(8)(inputs))
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(x)))


@_case(vectors)
def regularized() -> keras.Model:
    """Losses beside the loss: kernel and activity regularizers; noise with random state; a unit-norm constraint."""
    inputs = keras.Input((WIDTH,))
    x = layers.GaussianNoise(0.1, seed=1)(inputs)
    x = layers.Dense(16, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(1e-3))(x)
    x = layers.Dense(8, kernel_constraint="unit_norm", bias_regularizer="l1")(x)
    return compiled(keras.Model(inputs, layers.Dense(CLASSES, kernel_regularizer="L1L2")(x)))


@_case(vectors)
def frozen() -> keras.Model:
    model = dense_stack()
    model.get_layer("hidden_1").trainable = False
    return compiled(model)


@_case(vectors)
def bfloat16() -> keras.Model:
    return compiled(dense_stack(dtype="mixed_bfloat16"))


@_case(vectors)
def float16() -> keras.Model:
    """Loss scaling puts the whole update into one tf.cond."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=2.0**10)
    return compiled(dense_stack(dtype="mixed_float16"), optimizer)


def optimizers() -> dict[str, Callable[[], Any]]:
    """Optimizers whose update differs in kind, not only in arithmetic."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    return {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "adamw-global-clipnorm": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
        "adam-amsgrad-clipnorm": lambda: keras.optimizers.Adam(0.01, amsgrad=True, clipnorm=0.5),
        "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
        "schedule": lambda: keras.optimizers.RMSprop(schedule, centered=True),
        "accumulation": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
        "adafactor": lambda: keras.optimizers.Adafactor(0.05),
        "lion": lambda: keras.optimizers.Lion(0.001),
        "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    }
