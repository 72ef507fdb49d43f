"""What a placement costs where there is nothing to gain: one device, one stage, one microbatch, against plain Keras.

`python -m tests.benchmarks.overhead` lets the compiled Keras model and its placed twin take turns, each in a process of
its own with TensorFlow's own choice of threads, and prints the ratio of their step times as `fit` runs them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.benchmarks.pipeline_workloads import Workload, batch, keras_model
from tests.benchmarks.turns import answer_turns, take_turns

WORKLOADS = {
    "dense": Workload(kind="dense", depth=8, width=512, batch_size=512),
    "decoder": Workload(kind="decoder", depth=2, width=128, batch_size=8, length=64, vocabulary=512),
}
STEPS_PER_TURN = 5


def _perceptron() -> tuple[Any, Any]:
    import keras
    from keras import layers

    model = keras.Sequential(
        [keras.Input((784,)), layers.Dense(128, activation="relu"), layers.Dense(10, activation="softmax")]
    )
    return model, _labelled((64, 784))


def _resnet() -> tuple[Any, Any]:
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10), _labelled((8, 64, 64, 3))


def _lstm() -> tuple[Any, Any]:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((32, 64)),
            layers.LSTM(128, return_sequences=True),
            layers.LSTM(128),
            layers.Dense(10, activation="softmax"),
        ]
    )
    return model, _labelled((32, 32, 64))


def _labelled(shape: tuple[int, ...]) -> Any:
    generator = np.random.default_rng(0)
    return generator.standard_normal(shape, np.float32), generator.integers(0, 10, shape[0])


OTHERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "mlp 784-128-10": _perceptron,
    "resnet50 64x64": _resnet,
    "lstm": _lstm,
}
MODELS = [*OTHERS, *WORKLOADS]


def _contender(name: str, way: str) -> None:
    """Answer each line on stdin with the seconds of some training steps."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import partitioner

    if name in OTHERS:
        model, data = OTHERS[name]()
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    else:
        model, data = keras_model(WORKLOADS[name]), batch(WORKLOADS[name])
    if way == "placed":
        model = partitioner.auto_place(model, devices=["CPU:0"], batch_size=len(data[0]), strategy="single")
    steps = iter(tf.data.Dataset.from_tensors(data).repeat())
    model.make_train_function()

    def turn() -> None:
        for _ in range(STEPS_PER_TURN):
            model.train_function(steps)["loss"].numpy()

    answer_turns(turn)


def main() -> None:
    """Run both contenders in turns for each model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=101)
    options = parser.parse_args()
    if options.contender:
        _contender(*options.contender)
        return
    table = Table(title="training step on one device: placed over plain Keras")
    for column in ("model", "Keras ms", "placed ms", "ratio of medians", "median of ratios"):
        table.add_column(column, justify="right" if column != "model" else "left")
    for name in options.models:
        found = take_turns(
            {way: [__spec__.name, "--contender", name, way] for way in ("keras", "placed")}, options.rounds
        )
        keras, placed = found["keras"], found["placed"]
        ratios = [b / a for a, b in zip(keras.seconds, placed.seconds, strict=True)]
        milliseconds = [1e3 * one.median / STEPS_PER_TURN for one in (keras, placed)]
        table.add_row(
            name,
            *(f"{value:.2f}" for value in milliseconds),
            f"{placed.median / keras.median:.3f}",
            f"{statistics.median(ratios):.3f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
