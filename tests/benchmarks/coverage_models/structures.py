"""Inputs, outputs, losses and variables of every structure; sub-models; Python's control flow in `call`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import Built, Random, classifier, compiled, register, register_all

WIDTH = 12


def _dense(x: Any, units: int = 16) -> Any:
    return layers.Dense(units, activation="relu")(x)


@register("structure/outputs-with-weights")
def outputs_with_weights() -> keras.Model:
    """Two named outputs, two losses, two weights."""
    inputs = keras.Input((WIDTH,))
    x = _dense(inputs)
    kind, size = layers.Dense(4, name="kind")(_dense(x)), layers.Dense(1, name="size")(_dense(x))
    model = keras.Model(inputs, {"kind": kind, "size": size})
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "huber"}
    model.compile("adam", losses, loss_weights={"kind": 1.0, "size": 0.2}, metrics={"size": ["mae"]})
    return model


@register("structure/outputs-listed")
def outputs_listed() -> keras.Model:
    """Three outputs in a list, of which one has no loss."""
    inputs = keras.Input((WIDTH,))
    x = _dense(inputs)
    outputs = [layers.Dense(4)(x), layers.Dense(2)(_dense(x)), x]
    model = keras.Model(inputs, outputs)
    model.compile("adam", ["mse", "cosine_similarity", None], jit_compile=False)
    return model


@register("structure/nested-inputs")
def nested_inputs() -> keras.Model:
    """Inputs in a dictionary with a tuple."""
    inputs = {"left": keras.Input((4,)), "pair": (keras.Input((3,)), keras.Input((2,), dtype="int32"))}
    first, second = inputs["pair"]
    x = layers.Concatenate()([inputs["left"], first, ops.cast(second, "float32")])
    return classifier(inputs, _dense(_dense(x)))


@register("structure/single-output-in-dict")
def output_in_dict() -> keras.Model:
    """One output, under a name."""
    inputs = keras.Input((WIDTH,), name="x")
    model = keras.Model({"x": inputs}, {"y": layers.Dense(3)(_dense(inputs))})
    return compiled(model, loss={"y": "mse"})


def _encoder() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    return keras.Model(inputs, layers.Dense(8)(_dense(inputs)), name="encoder")


@register("structure/siamese")
def siamese() -> keras.Model:
    """One sub-model called on two inputs; a contrastive distance."""
    left, right, encoder = keras.Input((WIDTH,)), keras.Input((WIDTH,)), _encoder()
    distance = ops.sqrt(ops.sum((encoder(left) - encoder(right)) ** 2, axis=-1, keepdims=True) + 1e-6)
    return compiled(keras.Model([left, right], distance), loss="mae")


@register("structure/nested-three-deep", num_devices=3)
def nested() -> keras.Model:
    """Models in models in models."""
    inner = keras.Sequential([layers.Dense(WIDTH, activation="relu"), layers.BatchNormalization()], name="inner")
    inputs = keras.Input((WIDTH,))
    middle = keras.Model(inputs, inner(inner(inputs)), name="middle")
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, middle(middle(inputs)) + inputs)


@register("structure/autoencoder")
def autoencoder() -> keras.Model:
    """An encoder and a decoder, trained on its inputs."""
    inputs = keras.Input((WIDTH,))
    decoder = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(WIDTH)])
    return compiled(keras.Model(inputs, decoder(_encoder()(inputs))), loss="mse")


class Branching(keras.Model):
    """Loops and conditions of Python, which unroll when it is traced."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.hidden = [layers.Dense(WIDTH, activation="tanh") for _ in range(depth)]
        self.drop = layers.Dropout(0.3, seed=1)
        self.last = layers.Dense(5)

    def call(self, x: Any, training: bool = False) -> Any:
        """Every second layer is skipped over."""
        for index, layer in enumerate(self.hidden):
            y = layer(x)
            x = x + y if index % 2 else y
            if training and index == 1:
                x = self.drop(x, training=training)
        return self.last(x)


@register("structure/subclassed")
def subclassed() -> Built:
    """A subclassed model that does not say what it takes."""
    return Built(model=compiled(Branching()), input_shape=(WIDTH,))


class Keyed(keras.Model):
    """Takes a dictionary and gives one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(16, activation="relu"), layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        """A dictionary with the hidden values too."""
        hidden = self.first(tf.concat([inputs["a"], tf.cast(inputs["b"], tf.float32)], axis=-1))
        return {"hidden": hidden, "scores": self.last(hidden)}


@register("structure/subclassed-dict")
def subclassed_dict() -> Built:
    """A subclassed model with named inputs and outputs."""
    random, model = Random(), Keyed()
    model.compile("adam", {"scores": "mse"}, jit_compile=False)
    targets = {"hidden": random.normal(16), "scores": random.normal(4)}
    return Built(model=model, inputs={"a": random.normal(3), "b": random.below(5, 2)}, targets=targets)


class Recursive(keras.Model):
    """A tree: the same layers at every node."""

    def __init__(self) -> None:
        super().__init__()
        self.join, self.last = layers.Dense(3, activation="tanh"), layers.Dense(5)

    def call(self, x: Any) -> Any:
        """Halves, joined."""
        return self.last(self.folded(x))

    def folded(self, x: Any) -> Any:
        """The node of a part."""
        size = x.shape[-1]
        if size <= 3:
            return self.join(tf.concat([x, tf.zeros_like(x)], axis=-1))
        return self.join(tf.concat([self.folded(x[:, : size // 2]), self.folded(x[:, size // 2 :])], axis=-1))


@register("structure/recursive")
def recursive() -> Built:
    """A recursive network."""
    return Built(model=compiled(Recursive()), input_shape=(WIDTH,))


class Codebook(layers.Layer):
    """Vector quantization: codes that are moving averages, gradients passed straight through."""

    def build(self, shape: Any) -> None:
        """The codes, and how often each was used."""
        self.codes = self.add_weight(shape=(6, shape[-1]), initializer="random_normal", trainable=False, name="codes")
        self.used = self.add_weight(shape=(6,), initializer="ones", trainable=False, name="used")

    def call(self, x: Any, training: bool = False) -> Any:
        """The nearest code of each row."""
        distances = ops.sum((x[:, None] - self.codes[None]) ** 2, axis=-1)
        chosen = ops.one_hot(ops.argmin(distances, axis=-1), 6)
        quantized = ops.matmul(chosen, self.codes)
        if training:
            counts = ops.sum(chosen, axis=0)
            self.used.assign(0.9 * self.used + 0.1 * counts)
            self.codes.assign(0.9 * self.codes + 0.1 * ops.matmul(ops.transpose(chosen), x) / (counts[:, None] + 1e-3))
            self.add_loss(0.25 * ops.mean((ops.stop_gradient(quantized) - x) ** 2))
        return x + ops.stop_gradient(quantized - x)


@register("structure/codebook")
def codebook() -> keras.Model:
    """Non-trainable state that is written in training, and a loss beside the loss."""
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, _dense(Codebook()(layers.Dense(8)(inputs))))


class Counting(layers.Layer):
    """A plain `tf.Variable` that no Keras layer tracks as a weight."""

    def __init__(self, dtype_of_count: Any, is_written: bool) -> None:
        super().__init__()
        self.is_written = is_written
        self.held = [tf.Variable(tf.ones((), dtype_of_count), trainable=False)]

    def call(self, x: Any) -> Any:
        """The input times the variable."""
        if self.is_written:
            self.held[0].assign_add(tf.ones((), self.held[0].dtype))
        return x * tf.cast(self.held[0], x.dtype)

    def compute_output_shape(self, shape: Any) -> Any:
        """As the input's."""
        return shape


def _with_variable(dtype: Any, is_written: bool) -> keras.Model:
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, _dense(Counting(dtype, is_written)(_dense(inputs))))


register_all(
    "structure",
    {
        "variable-read": lambda: _with_variable(tf.float32, False),
        "variable-counted": lambda: _with_variable(tf.int64, True),
    },
)

_GLOBAL: list[tf.Variable] = []


@register("structure/variable-trained")
def variable_trained() -> keras.Model:
    """A trainable `tf.Variable` outside of every layer, reached by a closure."""
    _GLOBAL[:] = [tf.Variable(tf.ones((16,)))]
    inputs = keras.Input((WIDTH,))
    scaled = layers.Lambda(lambda x: x * _GLOBAL[0], output_shape=(16,))(_dense(inputs))
    return classifier(inputs, _dense(scaled))


@register("structure/regularized")
def regularized() -> keras.Model:
    """Regularizers and constraints of every kind, `add_loss`, activity regularization."""
    inputs = keras.Input((WIDTH,))
    x = layers.Dense(
        16, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer=keras.regularizers.L1L2(1e-3, 1e-3)
    )(inputs)
    x = layers.ActivityRegularization(1e-3, 1e-3)(x)
    x = layers.Dense(16, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(1e-2))(x)
    for constraint in ("max_norm", "non_neg", "unit_norm", "min_max_norm"):
        x = layers.Dense(8, activation="relu", kernel_constraint=constraint)(x)
    return classifier(inputs, x)


@register("structure/frozen")
def frozen() -> keras.Model:
    """A frozen sub-model with batch normalization under a new head."""
    body = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(16), layers.BatchNormalization(), layers.ReLU()])
    body.trainable = False
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, _dense(body(inputs)))


@register("structure/all-frozen")
def all_frozen() -> keras.Model:
    """Nothing trains but the moving averages."""
    inputs = keras.Input((WIDTH,))
    return classifier(inputs, layers.BatchNormalization(center=False, scale=False)(inputs), trainable=False)


@register("structure/unused-weights")
def unused() -> Built:
    """A layer with weights that the result does not depend on: its gradients are none."""

    class Unused(keras.Model):
        """Calls both layers, and uses one."""

        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = layers.Dense(5), layers.Dense(7)

        def call(self, x: Any) -> Any:
            """The used layer's output."""
            self.unused(x)
            return self.used(x)

    return Built(model=compiled(Unused()), input_shape=(WIDTH,))


@register("structure/sequential-of-lambdas")
def lambdas() -> keras.Model:
    """Lambda layers, permutations, repeats, and operators on symbolic tensors."""
    inputs = keras.Input((WIDTH,))
    x = layers.Lambda(lambda x: tf.math.log1p(tf.abs(x)), output_shape=(WIDTH,))(inputs)
    x = layers.RepeatVector(3)(x)[:, ::-1]
    x = layers.Permute((2, 1))(x) ** 2
    return classifier(inputs, layers.Flatten()(ops.clip(1.0 - x, -1, 1)))


@register("structure/no-parameters", modes=("inference",))
def no_parameters() -> keras.Model:
    """A model without a single weight."""
    inputs = keras.Input((WIDTH,))
    return compiled(keras.Model(inputs, ops.softmax(ops.roll(inputs, 1, axis=-1) * 2)), loss="mse")


@register("structure/scalar-rows")
def scalar_rows() -> keras.Model:
    """A number per row, and a number per row as output."""
    inputs = keras.Input(())
    x = _dense(ops.expand_dims(inputs, -1))
    return compiled(keras.Model(inputs, ops.squeeze(layers.Dense(1)(x), axis=-1)), loss="log_cosh")


_LOSSES: dict[str, Any] = {
    "categorical": lambda: keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    "focal": lambda: keras.losses.CategoricalFocalCrossentropy(from_logits=True),
    "divergence": lambda: keras.losses.KLDivergence(),
    "hinge": lambda: keras.losses.CategoricalHinge(),
    "cosine": lambda: keras.losses.CosineSimilarity(),
    "poisson": lambda: keras.losses.Poisson(),
    "dice": lambda: keras.losses.Dice(),
    "circle": lambda: keras.losses.Circle(remove_diagonal=True),
    "summed": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "percentage": lambda: keras.losses.MeanAbsolutePercentageError(),
    "function": lambda: lambda y, p: ops.mean(ops.abs(y - p) ** 1.5, axis=-1),
    "function-of-batch": lambda: lambda y, p: ops.mean((y - p - ops.mean(p, axis=0)) ** 2),
}


def with_loss(make_loss: Any, labels: bool = False) -> Built:
    """A perceptron under a loss."""
    inputs, random = keras.Input((WIDTH,)), Random()
    x = _dense(_dense(inputs))
    outputs = layers.Dense(4, activation="softmax" if not labels else None)(x)
    targets = random.below(4) if labels else np.eye(4, dtype=np.float32)[random.below(4)]
    return Built(model=compiled(keras.Model(inputs, outputs), loss=make_loss()), targets=targets)


def _with_loss_of(name: str) -> Any:
    return lambda: with_loss(_LOSSES[name], labels=name == "circle")


register_all("loss", {name: _with_loss_of(name) for name in _LOSSES}, modes=("training",))
