"""Transformers written by hand: encoders, decoders, both; positions, caches, experts, tied matrices, adapters."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import Built, Random, classifier, compiled, register

TOKENS = 40
LENGTH = 8
WIDTH = 16


def _block(x: Any, memory: Any = None, *, causal: bool = False, dropout: float = 0.1) -> Any:
    """Self-attention, attention to a memory if there is one, and two dense layers."""
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 8, dropout=dropout)(y, y, use_causal_mask=causal)
    if memory is not None:
        x = x + layers.MultiHeadAttention(2, 8)(layers.LayerNormalization()(x), memory)
    y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dropout(dropout)(layers.Dense(WIDTH)(y))


def _embedded(inputs: Any, **options: Any) -> Any:
    positions = layers.Embedding(LENGTH, WIDTH)(ops.arange(LENGTH))
    return layers.Embedding(TOKENS, WIDTH, **options)(inputs) + positions


@register("transformer/encoder")
def encoder() -> keras.Model:
    """An encoder of three blocks that classifies."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = _embedded(x)
    for _ in range(3):
        x = _block(x)
    return classifier(inputs, layers.GlobalAveragePooling1D()(x))


@register("transformer/encoder-masked", num_devices=3)
def masked_encoder() -> keras.Model:
    """An encoder whose padding is masked by Keras, through attention, pooling and loss."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, WIDTH, mask_zero=True)(x)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x)]))
    return classifier(inputs, layers.GlobalAveragePooling1D()(x))


@register("transformer/decoder", num_devices=3)
def decoder() -> keras.Model:
    """A causal decoder that predicts the next token."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = _embedded(x)
    for _ in range(3):
        x = _block(x, causal=True)
    return compiled(keras.Model(inputs, layers.Dense(TOKENS)(layers.LayerNormalization()(x))))


@register("transformer/encoder-decoder")
def encoder_decoder() -> keras.Model:
    """A translator: a decoder that attends to an encoder."""
    source = keras.Input((LENGTH,), dtype="int32", name="source")
    target = keras.Input((LENGTH,), dtype="int32", name="target")
    memory = _block(_block(_embedded(source)))
    x = _embedded(target)
    for _ in range(2):
        x = _block(x, memory, causal=True)
    return compiled(keras.Model({"source": source, "target": target}, layers.Dense(TOKENS)(x)))


@register("transformer/tied")
def tied() -> keras.Model:
    """Keras' reversible embedding, which scores tokens by the matrix that embeds them."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding(TOKENS, WIDTH)
    x = _block(embedding(x), causal=True)
    return compiled(keras.Model(inputs, embedding(x, reverse=True)))


class Rotary(layers.Layer):
    """Grouped-query attention over rotated queries and keys."""

    def __init__(self, heads: int = 4, groups: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, width
        self.query = layers.EinsumDense("btd,dhk->bthk", (None, heads, width))
        self.key = layers.EinsumDense("btd,dhk->bthk", (None, groups, width))
        self.value = layers.EinsumDense("btd,dhk->bthk", (None, groups, width))
        self.out = layers.EinsumDense("bthk,hkd->btd", (None, WIDTH))

    def rotated(self, x: Any, first: Any = 0) -> Any:
        """Each half of a head's values rotated by an angle that grows with the position."""
        positions = ops.cast(ops.arange(ops.shape(x)[1]) + first, "float32")
        angles = positions[:, None] / ops.power(10000.0, ops.arange(0, self.width, 2, dtype="float32") / self.width)
        sin, cos = (ops.cast(wave(angles), x.dtype)[None, :, None] for wave in (ops.sin, ops.cos))
        left, right = ops.split(x, 2, axis=-1)
        return ops.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def call(self, x: Any) -> Any:
        """Causal attention."""
        query, key = self.rotated(self.query(x)), self.rotated(self.key(x))
        key, value = (ops.repeat(part, self.heads // self.groups, axis=2) for part in (key, self.value(x)))
        scores = ops.einsum("bqhk,bshk->bhqs", query, key) / np.sqrt(self.width)
        allowed = ops.tril(ops.ones((LENGTH, LENGTH), "bool"))
        weights = ops.softmax(ops.where(allowed, scores, -1e9))
        return self.out(ops.einsum("bhqs,bshk->bqhk", weights, value))


@register("transformer/rotary")
def rotary() -> keras.Model:
    """A decoder as Llama's: rotary positions, grouped queries, root-mean-square norms, gated linear units."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, WIDTH)(x)
    for _ in range(2):
        x = x + Rotary()(layers.RMSNormalization()(x))
        y = layers.RMSNormalization()(x)
        gate = layers.Dense(32, activation="silu", use_bias=False)(y)
        x = x + layers.Dense(WIDTH, use_bias=False)(gate * layers.Dense(32, use_bias=False)(y))
    return compiled(keras.Model(inputs, layers.Dense(TOKENS, use_bias=False)(layers.RMSNormalization()(x))))


class CachedAttention(layers.Layer):
    """Attention of one token to those in a cache, into which it writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.project = layers.Dense(3 * WIDTH)

    def call(self, x: Any, cache: Any, position: Any) -> Any:
        """The token's values, and the cache with its key and value."""
        query, key, value = ops.split(self.project(x), 3, axis=-1)
        here = ops.one_hot(position, LENGTH)[..., None]
        keys = cache[:, 0] * (1 - here) + here * key
        values = cache[:, 1] * (1 - here) + here * value
        scores = ops.einsum("bqd,bsd->bqs", query, keys)
        past = ops.arange(LENGTH)[None, None] <= position[:, None, None]
        weights = ops.softmax(ops.where(past, scores, -1e9))
        return ops.einsum("bqs,bsd->bqd", weights, values), ops.stack([keys, values], axis=1)


@register("transformer/cached", modes=("inference",))
def cached() -> keras.Model:
    """One token at a time, with a cache that is passed in and out."""
    token = keras.Input((1,), dtype="int32", name="token")
    cache = keras.Input((2, LENGTH, WIDTH), name="cache")
    position = keras.Input((), dtype="int32", name="position")
    x = layers.Embedding(TOKENS, WIDTH)(token)
    y, after = CachedAttention()(x, cache, position)
    scores = layers.Dense(TOKENS)(layers.Dense(32, activation="gelu")(x + y))
    return compiled(keras.Model([token, cache, position], [scores, after]), loss=["mse", "mse"])


class CacheInPlace(layers.Layer):
    """A cache that the layer owns and updates by slices."""

    def build(self, shape: Any) -> None:
        """The cache, and where it ends."""
        self.cache = self.add_weight(shape=(LENGTH, shape[-1]), initializer="zeros", trainable=False, name="cache")
        self.end = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="end")

    def call(self, x: Any) -> Any:
        """The input, and the average of what is in the cache."""
        cache = ops.slice_update(self.cache, (self.end % LENGTH, 0), ops.mean(x, axis=0, keepdims=True))
        self.cache.assign(cache)
        self.end.assign_add(1)
        return x + ops.mean(cache, axis=0)


@register("transformer/cache-owned", modes=("inference",))
def cache_owned() -> keras.Model:
    """A cache in a layer's own variables."""
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, layers.Dense(WIDTH)(CacheInPlace()(layers.Dense(WIDTH)(inputs))))


class Experts(layers.Layer):
    """Two experts of four for each token, by a router; the load of the experts is a loss beside."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.count = count
        self.router = layers.Dense(count)
        self.experts = [
            keras.Sequential([layers.Dense(32, activation="gelu"), layers.Dense(WIDTH)]) for _ in range(count)
        ]

    def call(self, x: Any) -> Any:
        """The weighted sum of the chosen experts."""
        chances = ops.softmax(self.router(x))
        values, chosen = ops.top_k(chances, 2)
        gates = ops.sum(ops.one_hot(chosen, self.count) * values[..., None], axis=-2)
        self.add_loss(0.01 * ops.sum(ops.mean(chances, axis=(0, 1)) ** 2))
        return sum(gates[..., index : index + 1] * expert(x) for index, expert in enumerate(self.experts))

    def compute_output_shape(self, shape: Any) -> Any:
        """As the input's."""
        return shape


@register("transformer/experts", num_devices=3)
def experts() -> keras.Model:
    """A mixture of experts with a loss that balances them."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(TOKENS, WIDTH)(x)
    for _ in range(2):
        x = x + Experts()(layers.LayerNormalization()(x))
    return classifier(inputs, layers.GlobalAveragePooling1D()(x))


class SortedExperts(layers.Layer):
    """Experts that take only their tokens: rows are sorted out by boolean masks."""

    def build(self, shape: Any) -> None:
        """A router and a matrix for each of two experts."""
        self.router = self.add_weight(shape=(shape[-1], 2), name="router")
        self.matrices = [self.add_weight(shape=(shape[-1], shape[-1]), name=f"expert_{index}") for index in range(2)]

    def call(self, x: Any) -> Any:
        """Each row through its expert."""
        chances = tf.nn.softmax(tf.matmul(x, self.router))
        chosen = tf.argmax(chances, axis=-1, output_type=tf.int32)
        parts = tf.dynamic_partition(x, chosen, 2)
        places = tf.dynamic_partition(tf.range(tf.shape(x)[0]), chosen, 2)
        outputs = [tf.matmul(part, matrix) for part, matrix in zip(parts, self.matrices, strict=True)]
        together = tf.dynamic_stitch(places, outputs)
        return tf.ensure_shape(together, x.shape) * tf.reduce_max(chances, axis=-1, keepdims=True)


@register("transformer/experts-by-partition")
def sorted_experts() -> keras.Model:
    """Rows partitioned over experts, so that sizes depend on values."""
    x = inputs = keras.Input((WIDTH,))
    x = SortedExperts()(layers.Dense(WIDTH, activation="relu")(x))
    return classifier(inputs, x)


@register("transformer/vision")
def vision() -> keras.Model:
    """Patches of an image, a class token, blocks."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Reshape((16, WIDTH))(layers.Conv2D(WIDTH, 4, strides=4)(inputs))
    for _ in range(2):
        x = _block(x)
    return classifier(inputs, layers.LayerNormalization()(x)[:, 0])


@register("transformer/grouped-query")
def grouped_query() -> keras.Model:
    """Keras' own grouped-query and additive attention."""
    x = inputs = keras.Input((LENGTH, WIDTH))
    x = layers.GroupQueryAttention(8, 4, 2)(x, x)
    x = layers.AdditiveAttention()([x, layers.Dense(WIDTH)(x)])
    x = layers.Attention(use_scale=True, score_mode="concat")([x, x])
    return classifier(inputs, layers.GlobalMaxPooling1D()(x))


@register("transformer/flash")
def dot_product() -> keras.Model:
    """`keras.ops.dot_product_attention` with a bias."""

    class Attend(layers.Layer):
        """Attention with a learned bias for each pair of positions."""

        def build(self, shape: Any) -> None:
            """The bias."""
            self.bias = self.add_weight(shape=(1, 2, LENGTH, LENGTH), initializer="random_normal", name="bias")

        def call(self, x: Any) -> Any:
            """Two heads."""
            heads = ops.reshape(x, (-1, LENGTH, 2, WIDTH // 2))
            return ops.reshape(ops.dot_product_attention(heads, heads, heads, bias=self.bias), (-1, LENGTH, WIDTH))

    x = inputs = keras.Input((LENGTH, WIDTH))
    x = Attend()(layers.Dense(WIDTH)(x))
    return classifier(inputs, layers.Flatten()(layers.Dense(WIDTH)(x)))


@register("transformer/lora")
def lora() -> keras.Model:
    """Adapters of low rank on dense layers and an embedding; only they train."""
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    embedding, dense = layers.Embedding(TOKENS, WIDTH), layers.Dense(WIDTH, activation="relu")
    x = layers.EinsumDense("btd,de->bte", (LENGTH, WIDTH), name="mix")(dense(embedding(x)))
    model = classifier(inputs, layers.Flatten()(x))
    for layer in (embedding, dense, model.get_layer("mix")):
        layer.enable_lora(2)
    return compiled(model)


@register("transformer/gradients-of-inputs", modes=("inference",))
def saliency() -> Built:
    """A model whose output is a gradient of itself with respect to its inputs."""

    class Saliency(keras.Model):
        """Gradients of the largest score."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = layers.Dense(WIDTH, activation="gelu"), layers.Dense(4)

        def call(self, x: Any) -> Any:
            """The gradient, by a tape."""
            with tf.GradientTape() as tape:
                tape.watch(x)
                score = tf.reduce_max(self.last(self.first(x)), axis=-1)
            return tape.gradient(score, x)

    return Built(model=compiled(Saliency(), loss="mse"), inputs=Random().normal(WIDTH))
