"""Two towers on two devices against one serial device: predicted and measured step time.

`python -m tests.benchmarks.two_towers` starts one process per contender, because TensorFlow fixes its threads
when it starts: the unplaced model on one core, and the placed model on two logical CPU devices with one
intra-op thread each. The processes take turns, one round each.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.turns import answer_turns, take_turns

NUM_FEATURES = 256


def towers(width: int, depth: int) -> Any:
    import keras
    from keras import layers

    x = keras.Input((NUM_FEATURES,), name="features")
    ends = []
    for side in ("left", "right"):
        y = x
        for number in range(depth):
            y = layers.Dense(width, activation="relu", name=f"{side}_{number}")(y)
        ends.append(y)
    scores = layers.Dense(10, activation="softmax", name="scores")(layers.Concatenate(name="join")(ends))
    model = keras.Model(x, scores, name="two_towers")
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model


def _contender(kind: str, width: int, depth: int, batch_size: int) -> None:
    """Answer each line on stdin with the seconds of one training step."""
    import numpy as np
    import tensorflow as tf

    import partitioner

    is_placed = kind == "placed"
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2 if is_placed else 1)
    if not is_placed:
        os.sched_setaffinity(0, {0})
    partitioner.set_up_devices("CPU:0,CPU:1" if is_placed else "CPU:0")
    model: Any = towers(width, depth)
    predicted: dict[str, float] = {}
    if is_placed:
        plan = partitioner.plan(model, devices="CPU:0,CPU:1", batch_size=batch_size, time_limit=20)
        model = partitioner.place(model, plan)
        single = [b.step_seconds for b in plan.baselines if b.name.startswith("single")]
        predicted = {"two": plan.predicted.step_seconds, "one": min(single)}
    generator = np.random.default_rng(0)
    x = tf.constant(generator.standard_normal((batch_size, NUM_FEATURES)), tf.float32)
    y = tf.constant(generator.integers(0, 10, batch_size), tf.int32)
    step = tf.function(lambda a, b: model.train_step((a, b))["loss"], jit_compile=False)
    answer_turns(lambda: step(x, y).numpy(), predicted)


def main() -> None:
    """Run the contenders in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=["serial", "placed"])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.contender:
        _contender(options.contender, options.width, options.depth, options.batch_size)
        return
    sizes = ["--width", options.width, "--depth", options.depth, "--batch-size", options.batch_size]
    contenders = {kind: [__spec__.name, "--contender", kind, *sizes] for kind in ("serial", "placed")}
    found = take_turns(contenders, options.rounds)
    predicted = found["placed"].said
    table = Table(title=f"two towers, {options.depth} x Dense({options.width}) each, batch {options.batch_size}")
    for column in ("", "one serial device", "two devices", "speed-up"):
        table.add_column(column, justify="right")
    for name, one, two in (
        ("predicted", predicted["one"], predicted["two"]),
        ("measured (median)", found["serial"].median, found["placed"].median),
    ):
        table.add_row(name, f"{one * 1e3:.1f} ms", f"{two * 1e3:.1f} ms", f"{one / two:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
