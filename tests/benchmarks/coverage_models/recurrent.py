"""Recurrent layers, loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import Built, Random, classifier, compiled, register, register_all

LENGTH = 6
WIDTH = 8


def sequence(make_layer: Callable[[], Any]) -> Callable[[], keras.Model]:
    """A classifier of sequences by one layer."""

    def build() -> keras.Model:
        inputs = keras.Input((LENGTH, WIDTH))
        x = make_layer()(layers.Dense(WIDTH, activation="tanh")(inputs))
        return classifier(inputs, layers.Flatten()(x) if len(x.shape) > 2 else x)

    return build


_LAYERS: dict[str, Callable[[], Any]] = {
    "lstm": lambda: layers.LSTM(8, return_sequences=True),
    "lstm-dropout": lambda: layers.LSTM(8, dropout=0.2, recurrent_dropout=0.2, seed=1),
    "lstm-unrolled": lambda: layers.LSTM(4, unroll=True, go_backwards=True),
    "gru": lambda: layers.GRU(8, reset_after=False),
    "simple": lambda: layers.SimpleRNN(8),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode="sum"),
    "stacked-cells": lambda: layers.RNN([layers.LSTMCell(6), layers.GRUCell(4)]),
    "time-distributed": lambda: layers.TimeDistributed(layers.Dense(4, activation="relu")),
}
register_all("recurrent", {name: sequence(make) for name, make in _LAYERS.items()})


@register("recurrent/stateful", modes=("inference",))
def stateful() -> keras.Model:
    """States that stay from batch to batch."""
    inputs = keras.Input(batch_shape=(4, LENGTH, WIDTH))
    return classifier(inputs, layers.LSTM(4, stateful=True)(inputs))


@register("recurrent/masked")
def masked() -> keras.Model:
    """Two layers under a mask of padding."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(12, WIDTH, mask_zero=True)(inputs)
    return classifier(inputs, layers.LSTM(4)(layers.GRU(6, return_sequences=True)(x)))


@register("recurrent/conv-lstm")
def conv_lstm() -> keras.Model:
    """Convolutions over time: a video."""
    x = inputs = keras.Input((4, 8, 8, 2))
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(x)
    x = layers.TimeDistributed(layers.Conv2D(2, 3, strides=2))(x)
    return classifier(inputs, layers.Flatten()(layers.ConvLSTM2D(2, 3)(x)))


@register("recurrent/sequence-to-sequence")
def sequence_to_sequence() -> keras.Model:
    """A decoder that starts in the state of the encoder, and attends to it."""
    source, target = keras.Input((LENGTH, WIDTH), name="source"), keras.Input((LENGTH, WIDTH), name="target")
    memory, hidden, carry = layers.LSTM(8, return_sequences=True, return_state=True)(source)
    x = layers.LSTM(8, return_sequences=True)(target, initial_state=[hidden, carry])
    x = layers.Concatenate()([x, layers.Attention()([x, memory])])
    return compiled(keras.Model([source, target], layers.Dense(10)(x)))


@register("recurrent/ctc")
def ctc() -> Built:
    """Connectionist temporal classification of sounds."""
    inputs = keras.Input((16, WIDTH))
    x = layers.Bidirectional(layers.GRU(8, return_sequences=True))(layers.Conv1D(8, 3, padding="same")(inputs))
    model = compiled(keras.Model(inputs, layers.Dense(6)(x)), loss=keras.losses.CTC())
    return Built(model=model, targets=Random().below(5, 4) + 1)


class Step(layers.Layer):
    """A function of the input and one matrix."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, shape: Any) -> None:
        """The matrix."""
        self.matrix = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal", name="matrix")

    def call(self, x: Any) -> Any:
        """The function, applied."""
        return self.function(x, self.matrix)

    def compute_output_shape(self, shape: Any) -> Any:
        """As the input's."""
        return shape


def control_flow(function: Callable[[Any, Any], Any]) -> Callable[[], keras.Model]:
    """A classifier with a function between two dense layers."""

    def build() -> keras.Model:
        inputs = keras.Input((WIDTH,))
        x = Step(function)(layers.Dense(WIDTH, activation="tanh")(inputs))
        return classifier(inputs, layers.Dense(WIDTH)(x))

    return build


def _scan(x: Any, matrix: Any) -> Any:
    steps = ops.stack([x, 2 * x, 3 * x])

    def step(carry: Any, value: Any) -> Any:
        carry = ops.tanh(ops.matmul(carry, matrix) + value)
        return carry, carry

    last, every = ops.scan(step, ops.zeros_like(x), steps)
    return last + ops.sum(every, axis=0)


def _while(x: Any, matrix: Any) -> Any:
    count, x = ops.while_loop(
        lambda count, _: count < 3, lambda count, x: (count + 1, ops.tanh(ops.matmul(x, matrix))), (0, x)
    )
    return x * ops.cast(count, x.dtype)


def _while_by_value(x: Any, matrix: Any) -> Any:
    """Until the values are small: nobody knows how often."""
    return tf.while_loop(lambda x: tf.reduce_max(tf.abs(x)) > 0.5, lambda x: 0.5 * tf.tanh(tf.matmul(x, matrix)), (x,))[
        0
    ]


def _rows_mapped(x: Any, matrix: Any) -> Any:
    return tf.map_fn(lambda row: tf.linalg.matvec(matrix, row) * tf.norm(row), x)


def _vectorized(x: Any, matrix: Any) -> Any:
    return tf.vectorized_map(lambda row: tf.linalg.matvec(matrix, row), x)


def _cond(x: Any, matrix: Any) -> Any:
    return tf.cond(tf.reduce_sum(x[0]) > 0, lambda: tf.matmul(x, matrix), lambda: x - 1.0)


def _switch(x: Any, matrix: Any) -> Any:
    index = tf.cast(tf.reduce_sum(tf.cast(x > 0, tf.int32)) % 3, tf.int32)
    return tf.switch_case(index, [lambda: x, lambda: x @ matrix, lambda: tf.nn.relu(x @ tf.transpose(matrix))])


@tf.function(jit_compile=True)
def _by_xla(x: Any, matrix: Any) -> Any:
    return tf.nn.gelu(tf.matmul(x, matrix))


@tf.function
def _in_a_function(x: Any, matrix: Any) -> Any:
    return tf.nn.gelu(tf.matmul(x, matrix))


@tf.custom_gradient
def _scaled(x: Any) -> Any:
    return x, lambda gradient: 0.5 * gradient


def _custom_gradient(x: Any, matrix: Any) -> Any:
    return _scaled(tf.matmul(x, matrix))


def _recomputed(x: Any, matrix: Any) -> Any:
    return tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, matrix)))(x)


def _python_function(x: Any, matrix: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda x: x * 2, [x], tf.float32), x.shape) @ matrix


def _linear_algebra(x: Any, matrix: Any) -> Any:
    positive = tf.matmul(matrix, matrix, transpose_b=True) + 2 * tf.eye(WIDTH)
    root = tf.linalg.cholesky(positive)
    return tf.transpose(tf.linalg.triangular_solve(root, tf.transpose(x))) * tf.linalg.det(root) + tf.reduce_sum(
        tf.linalg.inv(positive)
    )


def _decompositions(x: Any, matrix: Any) -> Any:
    values = tf.linalg.svd(matrix, compute_uv=False)
    q, _ = tf.linalg.qr(matrix + tf.eye(WIDTH))
    return x @ q * values


def _fourier(x: Any, matrix: Any) -> Any:
    return tf.math.real(tf.signal.ifft(tf.signal.fft(tf.cast(x @ matrix, tf.complex64)) * 2)) + tf.signal.irfft(
        tf.signal.rfft(x)
    )


def _sorts(x: Any, matrix: Any) -> Any:
    values, _ = tf.math.top_k(x @ matrix, 4)
    return tf.sort(x) + tf.cumsum(x, axis=1) + tf.gather(x, tf.argsort(x), batch_dims=1) + tf.tile(values, [1, 2])


def _special(x: Any, matrix: Any) -> Any:
    y = x @ matrix
    return tf.math.erf(y) + tf.math.lgamma(tf.abs(y) + 1) + tf.math.digamma(tf.abs(y) + 1) + tf.math.bessel_i0e(y)


def _scattered(x: Any, matrix: Any) -> Any:
    flat = tf.tensor_scatter_nd_add(matrix, [[0, 1], [2, 3]], [1.0, 2.0])
    return tf.where(x > 0, x @ flat, tf.math.multiply_no_nan(x, tf.cast(x < 1, x.dtype)))


def _debugging(x: Any, matrix: Any) -> Any:
    tf.debugging.assert_all_finite(x, "not finite")
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 1e6)]):
        return tf.debugging.check_numerics(x @ matrix, "not a number")


def _sparse(x: Any, matrix: Any) -> Any:
    return tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), matrix)


def _ragged(x: Any, matrix: Any) -> Any:
    ragged = tf.RaggedTensor.from_tensor(x, lengths=tf.fill([tf.shape(x)[0]], 4))
    return (x @ matrix) * tf.reduce_sum(ragged, axis=1, keepdims=True)


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "scan": _scan,
    "while": _while,
    "while-by-value": _while_by_value,
    "map-rows": _rows_mapped,
    "vectorized-map": _vectorized,
    "cond": _cond,
    "switch": _switch,
    "jit-compiled": lambda x, matrix: _by_xla(x, tf.convert_to_tensor(matrix)),
    "function": lambda x, matrix: _in_a_function(x, tf.convert_to_tensor(matrix)),
    "custom-gradient": _custom_gradient,
    "recompute-gradient": _recomputed,
    "linear-algebra": _linear_algebra,
    "decompositions": _decompositions,
    "fourier": _fourier,
    "sorts": _sorts,
    "special-functions": _special,
    "scattered": _scattered,
    "checks": _debugging,
    "sparse": _sparse,
    "ragged": _ragged,
}
register_all("ops", {name: control_flow(function) for name, function in _FUNCTIONS.items()})
register("ops/numpy-function", modes=("inference",))(control_flow(_python_function))
