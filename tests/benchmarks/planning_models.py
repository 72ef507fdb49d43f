"""Models of the sizes that people train, of plain Keras layers and ops: builders that take no argument.

MODELS["llama-70b"].build()   # a compiled keras.Model; give the function itself to `partitioner.plan`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
from keras import layers, ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a Transformer.

    Attributes:
        blocks: Number of blocks; of an encoder and of a decoder each.
        width: Size of a token's vector.
        heads: Heads of queries; each is of width / heads.
        kv_heads: Heads of keys and values, each of which serves heads / kv_heads heads of queries.
        inner: Width inside a feed-forward layer.
        vocabulary: Number of tokens, or of classes of images.
        length: Tokens of a sequence.
        policy: Dtype policy.
    """

    blocks: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    length: int
    policy: str = "mixed_bfloat16"


GPT2_SMALL = Sizes(blocks=12, width=768, heads=12, kv_heads=12, inner=3072, vocabulary=50257, length=1024)
GPT2_MEDIUM = Sizes(blocks=24, width=1024, heads=16, kv_heads=16, inner=4096, vocabulary=50257, length=1024)
GPT2_XL = Sizes(blocks=48, width=1600, heads=25, kv_heads=25, inner=6400, vocabulary=50257, length=1024)
LLAMA_7B = Sizes(blocks=32, width=4096, heads=32, kv_heads=32, inner=11008, vocabulary=32000, length=4096)  # Llama 2
LLAMA_70B = Sizes(blocks=80, width=8192, heads=64, kv_heads=8, inner=28672, vocabulary=32000, length=4096)  # Llama 2
BERT_LARGE = Sizes(blocks=24, width=1024, heads=16, kv_heads=16, inner=4096, vocabulary=30522, length=512)
T5_LARGE = Sizes(blocks=24, width=1024, heads=16, kv_heads=16, inner=4096, vocabulary=32128, length=512)
VIT_LARGE = Sizes(blocks=24, width=1024, heads=16, kv_heads=16, inner=4096, vocabulary=1000, length=196)

ROTATION_BASE = 500_000.0  # Llama 3's
NEVER = -1e9


class Attention(layers.Layer):
    """Attention of `width / heads` per head, whose keys and values serve several heads of queries each.

    Args:
        sizes: Sizes of the Transformer.
        causal: Whether a token sees only those before it.
        rotary: Whether queries and keys are rotated by their positions.
        use_bias: Whether projections have a bias.
    """

    def __init__(
        self, sizes: Sizes, *, causal: bool = False, rotary: bool = False, use_bias: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        size = sizes.width // sizes.heads
        self.causal, self.rotary, self.served = causal, rotary, sizes.heads // sizes.kv_heads
        self.scale = size**-0.5

        def projection(heads: int, name: str) -> Any:
            bias = "he" if use_bias else None
            return layers.EinsumDense("btd,dhe->bthe", (None, heads, size), bias_axes=bias, name=name)

        self.query = projection(sizes.heads, "query")
        self.key = projection(sizes.kv_heads, "key")
        self.value = projection(sizes.kv_heads, "value")
        bias = "d" if use_bias else None
        self.out = layers.EinsumDense("bthe,hed->btd", (None, sizes.width), bias_axes=bias, name="out")

    def build(self, inputs_shape: Any, memory_shape: Any = None, bias_shape: Any = None) -> None:
        """Make the projections' variables."""
        self.query.build(inputs_shape)
        for layer in (self.key, self.value):
            layer.build(inputs_shape if memory_shape is None else memory_shape)
        self.out.build(self.query.compute_output_shape(inputs_shape))

    def call(self, inputs: Any, memory: Any = None, bias: Any = None) -> Any:
        """Attend from `inputs` to `memory`, or to themselves; `bias` is added to the scores."""
        seen = inputs if memory is None else memory
        query, key, value = self.query(inputs), self.key(seen), self.value(seen)
        if self.rotary:
            query, key = rotated(query), rotated(key)
        if self.served > 1:
            key, value = (ops.repeat(made, self.served, axis=2) for made in (key, value))
        scores = ops.einsum("bqhe,bkhe->bhqk", query, key) * self.scale
        if bias is not None:
            scores = scores + bias
        if self.causal:
            positions = ops.arange(scores.shape[-1])
            scores = ops.where(positions[:, None] >= positions[None, :], scores, ops.cast(NEVER, scores.dtype))
        return self.out(ops.einsum("bhqk,bkhe->bqhe", ops.softmax(scores), value))

    def compute_output_shape(self, inputs_shape: Any, *_: Any) -> Any:
        """As of the inputs."""
        return inputs_shape


def rotated(x: Any) -> Any:
    """Each pair of halves rotated by its position times its frequency (RoPE, arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    frequencies = ROTATION_BASE ** (-ops.arange(half, dtype="float32") / half)
    angles = ops.arange(x.shape[1], dtype="float32")[:, None, None] * frequencies
    cos, sin = ops.cast(ops.cos(angles), x.dtype), ops.cast(ops.sin(angles), x.dtype)
    first, second = x[..., :half], x[..., half:]
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Positions(layers.Layer):
    """Adds a learned vector per position."""

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        self.table = self.add_weight(shape=tuple(input_shape)[1:], initializer="random_normal", name="table")

    def call(self, inputs: Any) -> Any:
        """Add it."""
        return inputs + ops.convert_to_tensor(self.table)


class DistanceBias(layers.Layer):
    """A learned number per head and distance, clipped; T5's distances are in logarithmic buckets instead."""

    def __init__(self, heads: int, most: int = 128, **options: Any) -> None:
        super().__init__(**options)
        self.heads, self.most = heads, most

    def build(self, input_shape: Any) -> None:
        """Make the table."""
        self.table = self.add_weight(shape=(2 * self.most + 1, self.heads), initializer="zeros", name="table")

    def call(self, inputs: Any) -> Any:
        """The bias of scores of shape (1, heads, length, length)."""
        positions = ops.arange(inputs.shape[1])
        distances = ops.clip(positions[:, None] - positions[None, :], -self.most, self.most) + self.most
        bias = ops.take(ops.convert_to_tensor(self.table), distances, axis=0)
        return ops.cast(ops.transpose(bias, (2, 0, 1))[None], self.compute_dtype)


def _feed_forward(x: Any, sizes: Sizes, activation: str, *, use_bias: bool = True) -> Any:
    return layers.Dense(sizes.width, use_bias=use_bias)(
        layers.Dense(sizes.inner, activation=activation, use_bias=use_bias)(x)
    )


def _gated(x: Any, sizes: Sizes) -> Any:
    gate = layers.Dense(sizes.inner, activation="silu", use_bias=False)(x)
    up = layers.Dense(sizes.inner, use_bias=False)(x)
    return layers.Dense(sizes.width, use_bias=False)(layers.Multiply()([gate, up]))


def _with_policy(build: Callable[[Sizes], keras.Model]) -> Callable[[Sizes], keras.Model]:
    def built(sizes: Sizes) -> keras.Model:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(sizes.policy)
        try:
            model = build(sizes)
        finally:
            keras.config.set_dtype_policy(before)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return built


@_with_policy
def gpt2(sizes: Sizes) -> keras.Model:
    """Blocks that normalise first, learned positions, and logits of the next token."""
    tokens = keras.Input((sizes.length,), dtype="int32")
    x = Positions()(layers.Embedding(sizes.vocabulary, sizes.width)(tokens))
    for _ in range(sizes.blocks):
        x = layers.Add()([x, Attention(sizes, causal=True)(layers.LayerNormalization(epsilon=1e-5)(x))])
        x = layers.Add()([x, _feed_forward(layers.LayerNormalization(epsilon=1e-5)(x), sizes, "gelu")])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(tokens, layers.Dense(sizes.vocabulary, use_bias=False, name="logits")(x), name="gpt2")


@_with_policy
def llama(sizes: Sizes) -> keras.Model:
    """Root mean squares, rotated queries and keys, gated feed-forward layers, no biases."""
    tokens = keras.Input((sizes.length,), dtype="int32")
    x = layers.Embedding(sizes.vocabulary, sizes.width)(tokens)
    for _ in range(sizes.blocks):
        attention = Attention(sizes, causal=True, rotary=True, use_bias=False)
        x = layers.Add()([x, attention(layers.RMSNormalization(epsilon=1e-5)(x))])
        x = layers.Add()([x, _gated(layers.RMSNormalization(epsilon=1e-5)(x), sizes)])
    x = layers.RMSNormalization(epsilon=1e-5)(x)
    return keras.Model(tokens, layers.Dense(sizes.vocabulary, use_bias=False, name="logits")(x), name="llama")


@_with_policy
def bert(sizes: Sizes) -> keras.Model:
    """An encoder whose blocks normalise last, with logits of each token."""
    tokens = keras.Input((sizes.length,), dtype="int32")
    x = Positions()(layers.Embedding(sizes.vocabulary, sizes.width)(tokens))
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(sizes.blocks):
        attended = layers.Dropout(0.1)(Attention(sizes)(x))
        x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, attended]))
        made = layers.Dropout(0.1)(_feed_forward(x, sizes, "gelu"))
        x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, made]))
    x = layers.LayerNormalization(epsilon=1e-12)(layers.Dense(sizes.width, activation="gelu")(x))
    return keras.Model(tokens, layers.Dense(sizes.vocabulary, name="logits")(x), name="bert")


@_with_policy
def t5(sizes: Sizes) -> keras.Model:
    """An encoder and a decoder, with biases by distance that the blocks of each share."""
    source = keras.Input((sizes.length,), dtype="int32", name="source")
    target = keras.Input((sizes.length,), dtype="int32", name="target")
    embedding = layers.Embedding(sizes.vocabulary, sizes.width)

    def normed(x: Any) -> Any:
        return layers.RMSNormalization(epsilon=1e-6)(x)

    x = embedding(source)
    bias = DistanceBias(sizes.heads)(x)
    for _ in range(sizes.blocks):
        x = layers.Add()([x, Attention(sizes, use_bias=False)(normed(x), bias=bias)])
        x = layers.Add()([x, _feed_forward(normed(x), sizes, "relu", use_bias=False)])
    memory, x = normed(x), embedding(target)
    bias = DistanceBias(sizes.heads)(x)
    for _ in range(sizes.blocks):
        x = layers.Add()([x, Attention(sizes, causal=True, use_bias=False)(normed(x), bias=bias)])
        x = layers.Add()([x, Attention(sizes, use_bias=False)(normed(x), memory=memory)])
        x = layers.Add()([x, _feed_forward(normed(x), sizes, "relu", use_bias=False)])
    logits = layers.Dense(sizes.vocabulary, use_bias=False, name="logits")(normed(x))
    return keras.Model([source, target], logits, name="t5")


@_with_policy
def vit(sizes: Sizes) -> keras.Model:
    """A classifier of images of `length` patches of 16 x 16 pixels."""
    side = 16 * round(sizes.length**0.5)
    images = keras.Input((side, side, 3))
    x = layers.Conv2D(sizes.width, 16, strides=16)(images)
    x = Positions()(layers.Reshape((sizes.length, sizes.width))(x))
    for _ in range(sizes.blocks):
        x = layers.Add()([x, Attention(sizes)(layers.LayerNormalization(epsilon=1e-6)(x))])
        x = layers.Add()([x, _feed_forward(layers.LayerNormalization(epsilon=1e-6)(x), sizes, "gelu")])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(images, layers.Dense(sizes.vocabulary, name="logits")(x), name="vit")


def image_classifier(name: str) -> keras.Model:
    """An architecture of `keras.applications`, of 1000 classes."""
    model = getattr(keras.applications, name)(weights=None)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    return model


def unet(side: int = 256, channels: Sequence[int] = (64, 128, 256, 512, 1024)) -> keras.Model:
    """Two convolutions at each size, down and up again, and a class for each pixel (arXiv 1505.04597)."""

    def twice(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        return x

    x = images = keras.Input((side, side, 3))
    skipped = []
    for filters in channels[:-1]:
        x = twice(x, filters)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = twice(x, channels[-1])
    for filters, beside in zip(reversed(channels[:-1]), reversed(skipped), strict=True):
        up = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = twice(layers.Concatenate()([beside, up]), filters)
    model = keras.Model(images, layers.Conv2D(21, 1)(x), name="unet")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def two_towers(users: int = 10_000_000, items: int = 1_000_000, width: int = 128) -> keras.Model:
    """A user and an item, each from a table and dense layers, and the score of their product."""
    inputs, ends = [], []
    for name, count in (("user", users), ("item", items)):
        number = keras.Input((), dtype="int32", name=name)
        x = layers.Embedding(count, width, name=f"{name}_table")(number)
        for units in (1024, 512, 128):
            x = layers.Dense(units, activation="relu")(x)
        inputs.append(number)
        ends.append(x)
    model = keras.Model(inputs, layers.Dot(axes=1)(ends), name="two_towers")
    model.compile("adagrad", keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def lstm(units: int = 1024, depth: int = 4, length: int = 128, vocabulary: int = 32000) -> keras.Model:
    """Layers of LSTM over tokens, and logits of the next token."""
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, units)(tokens)
    for _ in range(depth):
        x = layers.LSTM(units, return_sequences=True)(x)
    model = keras.Model(tokens, layers.Dense(vocabulary, name="logits")(x), name="lstm")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A builder, and the rows of the batch that it is planned for on 8 devices; on others in proportion."""

    build: Callable[[], keras.Model]
    rows: int


MODELS: Mapping[str, PlannedModel] = {
    "resnet50": PlannedModel(build=partial(image_classifier, "ResNet50"), rows=1024),
    "inception-v3": PlannedModel(build=partial(image_classifier, "InceptionV3"), rows=1024),
    "unet": PlannedModel(build=unet, rows=128),
    "gpt2-small": PlannedModel(build=partial(gpt2, GPT2_SMALL), rows=64),
    "gpt2-medium": PlannedModel(build=partial(gpt2, GPT2_MEDIUM), rows=32),
    "gpt2-xl": PlannedModel(build=partial(gpt2, GPT2_XL), rows=16),
    "llama-7b": PlannedModel(build=partial(llama, LLAMA_7B), rows=8),
    "llama-70b": PlannedModel(build=partial(llama, LLAMA_70B), rows=16),
    "bert-large": PlannedModel(build=partial(bert, BERT_LARGE), rows=64),
    "t5-large": PlannedModel(build=partial(t5, T5_LARGE), rows=64),
    "vit-large": PlannedModel(build=partial(vit, VIT_LARGE), rows=256),
    "two-towers": PlannedModel(build=two_towers, rows=16384),
    "lstm": PlannedModel(build=lstm, rows=512),
}
