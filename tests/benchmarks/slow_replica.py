"""Four replicas of which one takes five times as long: samples per second of synchronous and asynchronous updates.

A perceptron learns digits, and a layer of it waits, in one replica several times as long as in the others. So replicas
wait rather than work, and the machine's number of cores hardly matters.

python -m tests.benchmarks.slow_replica --factor 5 --epochs 3
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import partitioner
from partitioner.emit.pipeline.stage_function import StageFunctions
from tests.asking import asked

_SECONDS = "seconds_to_wait"
BATCH = 64
REPLICAS = 4


class Wait(layers.Layer):
    """Gives back what it is given, after some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="wait")
        self.seconds = seconds

    def call(self, x: Any) -> Any:
        """As given."""
        seconds = tf.constant(self.seconds, name=_SECONDS)
        with tf.control_dependencies([tf.py_function(lambda value: time.sleep(float(value)), [seconds], [])]):
            return tf.identity(x)


def slow_down(replica: int, factor: float) -> None:
    """Let the layer wait so many times as long in one replica of whatever is placed from now on."""
    body = StageFunctions._body

    def slow_body(self: StageFunctions, program: Any) -> Any:
        found = body(self, program)
        for node in found.node:
            if self._replica == replica and node.name.endswith(f"/{_SECONDS}"):
                value = tf.make_ndarray(node.attr["value"].tensor)
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value * np.float32(factor)))
        return found

    StageFunctions._body = slow_body


def build_model(wait: Wait) -> keras.Model:
    """64-128-10 with the layer that waits."""
    model = keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            wait,
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", name="scores"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Print a line for each kind of updates, and how many times as fast the asynchronous ones are."""
    parser = argparse.ArgumentParser(description="Compare updates where one replica of four is slow.")
    parser.add_argument("--factor", type=float, default=5.0, help="how many times as long it takes")
    parser.add_argument("--seconds", type=float, default=0.1, help="what the others take for a part of a batch")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(4 * REPLICAS)  # who waits takes one
    partitioner.set_up_devices(f"CPU:0-{REPLICAS - 1}")
    pixels, labels = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32), labels
    slow_down(REPLICAS - 1, options.factor)
    rates = {}
    print("updates  samples/s  updates by replica    mean and largest staleness  accuracy")
    for updates in ("sync", "async"):
        keras.utils.set_random_seed(0)
        placed: Any = partitioner.auto_place(
            build_model(Wait(options.seconds)),
            **asked(
                devices=[f"CPU:{index}" for index in range(REPLICAS)],
                batch_size=BATCH,
                strategy="mirrored",
                microbatches=1,
                updates=updates,
            ),
        )
        placed.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, verbose=0)  # traces
        start = time.perf_counter()
        placed.fit(x, y, batch_size=BATCH, epochs=options.epochs, verbose=0)
        rates[updates] = options.epochs * len(x) / (time.perf_counter() - start)
        accuracy = placed.evaluate(x, y, batch_size=len(x), verbose=0)[1]
        print(f"{updates:7} {rates[updates]:10,.0f}  {_counts(placed, updates)}  {accuracy:8.1%}", flush=True)
    print(f"asynchronous updates are {rates['async'] / rates['sync']:.2f} times as fast")


def _counts(placed: Any, updates: str) -> str:
    if updates == "sync":
        return f"{'together':20}  {0:20.2f} {0:5}"
    counts = placed.update_counts
    mean = sum(stale * number for stale, number in counts.staleness.items()) / counts.num_updates
    by_replica = ", ".join(map(str, counts.by_replica))
    return f"{by_replica:20}  {mean:20.2f} {max(counts.staleness):5}"


if __name__ == "__main__":
    main()
