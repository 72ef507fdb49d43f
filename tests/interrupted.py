"""A program that is interrupted in steps of several seconds and says in which state that left the model.

For each scenario it prints its name when a slow step begins; then, interrupted, the clock's time and whether every
variable is as `before` the step, as `after` it, or `part` of them. Exits with 0 if the steps after these ran.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.asking import asked

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import partitioner

ROWS, WIDTH = 16, 8


def slowly(x: Any, rounds: Any) -> Any:
    """`x`, after that many rounds of work."""
    count = tf.cast(tf.reduce_max(rounds), tf.int32)
    work = tf.while_loop(
        lambda i, _: i < count, lambda i, w: (i + 1, tf.tanh(w @ w)), (0, tf.ones((256, 256)) + 0 * tf.reduce_sum(x))
    )
    return x + 0 * tf.stop_gradient(work[1][0, 0])


class Slow(layers.Layer):
    """Passes on what it is given, slowly."""

    def call(self, inputs: Any) -> Any:
        return slowly(*inputs)


class SlowMomentum(keras.optimizers.SGD):
    """Takes its time for each variable, by the learning rate; learns at a tenth."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(slowly(tf.convert_to_tensor(gradient), learning_rate), variable, tf.constant(0.1))


def placed_model(optimizer: Any) -> Any:
    x, rounds = keras.Input((WIDTH,)), keras.Input((1,))
    y = x
    for _ in range(2):
        y = layers.Dense(WIDTH)(Slow()([y, rounds]))
    model = keras.Model([x, rounds], y)
    model.compile(optimizer, "mse")
    devices = ["CPU:1", "CPU:2"]
    return partitioner.auto_place(
        model,
        **asked(
            devices=devices, batch_size=ROWS, strategy="layer-split", microbatches=4, schedule="1f1b", time_limit=4
        ),
    )


def batch(rounds: float) -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    return (x, np.full((ROWS, 1), rounds, np.float32)), x


def interrupted(scenario: str, placed: Any, step: Callable[[float], Any], seconds: float) -> None:
    """Run a step of about that many seconds, to be interrupted, and one more."""
    # Weights, what the optimizer keeps of each, and the number of steps: whatever a step changes.
    held = [v for v in (*placed.model.variables, *placed.optimizer.variables) if "learning_rate" not in v.path]
    step(1)  # compiles
    began = time.monotonic()
    step(200)
    rounds = 200 * seconds / (time.monotonic() - began)
    before = [np.array(variable) for variable in held]
    print(scenario, flush=True)
    try:
        step(rounds)
        print(time.monotonic(), "missed", flush=True)
    except KeyboardInterrupt:
        now = time.monotonic()
        changed = sum(not np.array_equal(np.array(v), b) for v, b in zip(held, before, strict=True))
        print(now, {0: "before", len(held): "after"}.get(changed, "part"), flush=True)
    step(1)


def main() -> None:
    partitioner.set_up_devices(["CPU:0", "CPU:1", "CPU:2"])
    placed = placed_model("adam")
    interrupted("train_on_batch", placed, lambda rounds: placed.train_on_batch(*batch(rounds)), 6)
    interrupted("fit", placed, lambda rounds: placed.fit(*batch(rounds), batch_size=ROWS, verbose=0), 6)
    interrupted("evaluate", placed, lambda rounds: placed.evaluate(*batch(rounds), batch_size=ROWS, verbose=0), 6)
    interrupted("predict", placed, lambda rounds: placed.predict(batch(rounds)[0], batch_size=ROWS, verbose=0), 6)
    slow = placed_model(SlowMomentum(momentum=0.9))

    def update(rounds: float) -> None:
        slow.optimizer.learning_rate.assign(rounds)
        slow.train_on_batch(*batch(1))

    interrupted("updates", slow, update, 2)
    interrupted("twice", slow, update, 6)


if __name__ == "__main__":
    sys.exit(main())
