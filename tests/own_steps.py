"""Models that define a step themselves: one tape, several optimizers with a penalty on gradients, an evaluation."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

WIDTH = 16
SIDE = 8


class OwnTrainStep(keras.Model):
    """Keras' own training step, written out."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def own_train_step(optimizer: str = "adam", kind: type[keras.Model] = OwnTrainStep) -> keras.Model:
    """A perceptron whose activation has a gradient of its own."""
    x = inputs = keras.Input((WIDTH,))
    for name in ("first", "second"):
        x = layers.Dense(32, activation="silu", name=name)(x)
    model = kind(inputs, layers.Dense(3, name="last")(x), name="own")
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


class OwnTestStep(keras.Model):
    """Evaluation by the largest error, in place of the loss."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"worst": tf.reduce_max(tf.abs(self(x, training=False) - y))}


class Adversaries(keras.Model):
    """A generator and a discriminator, each with an optimizer; a penalty on the gradient of the discriminator.

    It has no `call`: it only trains.
    """

    def __init__(self) -> None:
        super().__init__(name="adversaries")
        self.judge = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Conv2D(4, 3, strides=2, name="conv"),
                layers.LeakyReLU(0.2, name="leaky"),
                layers.Flatten(name="flatten"),
                layers.Dense(1, name="score"),
            ],
            name="judge",
        )
        self.painter = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(SIDE * SIDE, name="pixels"),
                layers.Reshape((SIDE, SIDE, 1), name="image"),
            ],
            name="painter",
        )
        self.noise = keras.random.SeedGenerator(1)

    def compile(self, judge_optimizer: Any, painter_optimizer: Any, loss: Any) -> None:
        super().compile()
        self.judge_optimizer, self.painter_optimizer, self.loss_of = judge_optimizer, painter_optimizer, loss
        self.judged, self.painted = keras.metrics.Mean(name="judged"), keras.metrics.Mean(name="painted")

    @property
    def metrics(self) -> list[Any]:
        return [self.judged, self.painted]

    def train_step(self, data: Any) -> Any:
        rows = tf.shape(data)[0]
        fakes = self.painter(keras.random.normal((rows, 4), seed=self.noise))
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(data)
                scores = self.judge(data, training=True)
            penalty = tf.reduce_mean(tf.square(inner.gradient(scores, data)))
            judged = self.loss_of(tf.ones_like(scores), scores) + penalty
            judged += self.loss_of(tf.zeros_like(scores), self.judge(fakes, training=True))
        gradients = tape.gradient(judged, self.judge.trainable_variables)
        self.judge_optimizer.apply(gradients, self.judge.trainable_variables)
        with tf.GradientTape() as tape:
            scores = self.judge(self.painter(keras.random.normal((rows, 4), seed=self.noise)))
            painted = self.loss_of(tf.ones_like(scores), scores)
        gradients = tape.gradient(painted, self.painter.trainable_variables)
        self.painter_optimizer.apply(gradients, self.painter.trainable_variables)
        self.judged.update_state(judged)
        self.painted.update_state(painted)
        return {"judged": self.judged.result(), "painted": self.painted.result()}


def adversaries() -> keras.Model:
    """A compiled pair of adversaries."""
    model = Adversaries()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-2), loss)
    return model
