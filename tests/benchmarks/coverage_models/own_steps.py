"""Models that define their training step themselves."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests import own_steps
from tests.benchmarks.coverage_models.registry import Built, Random, register

WIDTH = 12


@register("own-step/adversaries", modes=("training",))
def adversaries() -> Built:
    """Two optimizers and a penalty on gradients."""
    return Built(model=own_steps.adversaries(), input_shape=(own_steps.SIDE, own_steps.SIDE, 1))


@register("own-step/written-out")
def written_out() -> keras.Model:
    """Keras' own step."""
    return own_steps.own_train_step()


class Autoencoder(keras.Model):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8)])
        self.decoder = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(WIDTH)])
        self.noise = keras.random.SeedGenerator(1)
        self.total, self.divergence = keras.metrics.Mean(name="total"), keras.metrics.Mean(name="divergence")

    @property
    def metrics(self) -> list[Any]:
        """What it tracks."""
        return [self.total, self.divergence]

    def call(self, x: Any) -> Any:
        """What is decoded, and the mean and logarithm of the variance of the code."""
        mean, spread = ops.split(self.encoder(x), 2, axis=-1)
        code = mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.noise)
        return self.decoder(code), mean, spread

    def train_step(self, data: Any) -> Any:
        """Reconstruction and divergence."""
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            decoded, mean, spread = self(x, training=True)
            divergence = -0.5 * tf.reduce_mean(1 + spread - mean**2 - tf.exp(spread))
            total = tf.reduce_mean(keras.losses.mean_squared_error(x, decoded)) + divergence
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(total)
        self.divergence.update_state(divergence)
        return {"total": self.total.result(), "divergence": self.divergence.result()}


@register("own-step/variational-autoencoder")
def variational_autoencoder() -> Built:
    """A variational autoencoder with its own step."""
    model = Autoencoder()
    model.compile("adam", jit_compile=False)
    return Built(model=model, inputs=Random().normal(WIDTH))


class Distiller(keras.Model):
    """A student that learns from a frozen teacher, which lags behind it by a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.student = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(16, activation="relu"), layers.Dense(4)])
        self.teacher = keras.models.clone_model(self.student)
        self.teacher.trainable = False

    def call(self, x: Any) -> Any:
        """The student's."""
        return self.student(x)

    def train_step(self, data: Any) -> Any:
        """The student's step, then the teacher's average."""
        x, y = data
        with tf.GradientTape() as tape:
            scores = self.student(x, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, scores, from_logits=True))
            loss += tf.reduce_mean(keras.losses.kl_divergence(tf.nn.softmax(self.teacher(x)), tf.nn.softmax(scores)))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.student.trainable_variables), 1.0)
        self.optimizer.apply(gradients, self.student.trainable_variables)
        for ours, theirs in zip(self.teacher.variables, self.student.variables, strict=True):
            ours.assign(0.9 * ours + 0.1 * theirs)
        return {"loss": loss}


@register("own-step/distillation")
def distillation() -> Built:
    """A teacher and a student."""
    model = Distiller()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    random = Random()
    return Built(model=model, inputs=random.normal(WIDTH), targets=random.below(4))


class Contrastive(keras.Model):
    """Two views of each row; each row is told from all others."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8)])
        self.augment = layers.GaussianNoise(0.1, seed=2)

    def call(self, x: Any) -> Any:
        """The code."""
        return self.encoder(x)

    def train_step(self, data: Any) -> Any:
        """As SimCLR's."""
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            left, right = (
                tf.math.l2_normalize(self.encoder(self.augment(x, training=True)), axis=-1) for _ in range(2)
            )
            scores = tf.matmul(left, right, transpose_b=True) / 0.1
            own = tf.range(tf.shape(x)[0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@register("own-step/contrastive")
def contrastive() -> Built:
    """Rows meet in the loss."""
    model = Contrastive()
    model.compile(keras.optimizers.AdamW(1e-3), jit_compile=False)
    return Built(model=model, inputs=Random().normal(WIDTH))


class OwnLoss(keras.Model):
    """A loss written in `compute_loss`."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Mean squared error, and a penalty on large outputs."""
        return tf.reduce_mean((y - y_pred) ** 2) + 0.01 * tf.reduce_mean(tf.abs(y_pred))


@register("own-step/own-loss")
def own_loss() -> keras.Model:
    """`compute_loss` overridden, `train_step` not."""
    inputs = keras.Input((WIDTH,))
    model = OwnLoss(inputs, layers.Dense(3)(layers.Dense(16, activation="relu")(inputs)))
    model.compile("adam", "mse", jit_compile=False)
    return model


@register("own-step/several-updates", modes=("training",))
def several_updates() -> Built:
    """A critic's step repeated in Python, and a mean of its weights in a `tf.Variable`."""

    class Critic(keras.Model):
        """Three updates in one step."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
            self.rounds = tf.Variable(0, trainable=False, dtype=tf.int64)

        def call(self, x: Any) -> Any:
            """The score."""
            return self.inner(x)

        def train_step(self, data: Any) -> Any:
            """Three updates."""
            x = data[0] if isinstance(data, tuple) else data
            loss = tf.constant(0.0)
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - 1.0))
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            self.rounds.assign_add(1)
            return {"loss": loss}

    model = Critic()
    model.compile("adam", jit_compile=False)
    return Built(model=model, inputs=Random().normal(WIDTH))
