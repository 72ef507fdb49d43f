"""What microbatches cost before the first step ends: emission and first call with 32 of them, and with none.

`python -m tests.benchmarks.compile_time` places ResNet50 (64 x 64) and a 12-layer Transformer over two logical CPU
devices, each time in a fresh process, in turns. Emission is making the step's function of the traced graph; the first
call is TensorFlow's work on it, and one step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.asking import asked
from tests.benchmarks.pipeline_workloads import Workload, batch, keras_model
from tests.benchmarks.turns import take_turns

DEVICES = ["CPU:0", "CPU:1"]
BATCH_SIZE = 32


def _transformer() -> tuple[Any, Any]:
    sizes = Workload(kind="decoder", depth=12, width=128, batch_size=BATCH_SIZE, length=32, vocabulary=1000)
    return keras_model(sizes), batch(sizes)


def _resnet() -> tuple[Any, Any]:
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((BATCH_SIZE, 64, 64, 3), np.float32)
    return model, (x, generator.integers(0, 10, BATCH_SIZE))


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {"resnet50": _resnet, "transformer-12": _transformer}


def _contender(name: str, num_microbatches: int) -> None:
    """Print the seconds of emission and of the first two steps."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import partitioner

    partitioner.set_up_devices(DEVICES)
    model, data = MODELS[name]()
    plan = partitioner.plan(
        model,
        **asked(
            devices=DEVICES,
            batch_size=BATCH_SIZE,
            strategy="layer-split",
            microbatches=num_microbatches,
            schedule="1f1b" if num_microbatches > 1 else "sequential",
            time_limit=15,
        ),
    )
    placed = partitioner.place(model, plan)
    kind, specs = placed.program.signatures()[0]
    steps = iter(tf.data.Dataset.from_tensors(data).repeat())
    seconds = {"emission": _seconds(lambda: placed.program.function(kind, specs))}
    placed.make_train_function()
    for name in ("first call", "second call"):
        seconds[name] = _seconds(lambda: placed.train_function(steps)["loss"].numpy())
    print(json.dumps(seconds | {"ops": plan.model.num_ops}))


def _seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Run every model with one microbatch and with many, in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", nargs=2, metavar=("MODEL", "MICROBATCHES"), help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.contender:
        name, num_microbatches = options.contender
        _contender(name, int(num_microbatches))
        return
    table = Table(title="seconds, medians of fresh processes")
    for column in ("model", "microbatches", "ops", "emission", "first call", "second call", "first call x"):
        table.add_column(column, justify="right" if column != "model" else "left")
    for name in options.models:
        counts = (1, options.microbatches)
        contenders = {f"{count}": [__spec__.name, "--contender", name, count] for count in counts}
        runs = [take_turns(contenders, 0) for _ in range(options.rounds)]
        firsts: list[float] = []
        for count in counts:
            said = [run[f"{count}"].said for run in runs]
            emission, first, second = (
                statistics.median(one[what] for one in said) for what in ("emission", "first call", "second call")
            )
            firsts.append(first)
            cells = (f"{emission:.2f}", f"{first:.2f}", f"{second:.2f}", f"{first / firsts[0]:.2f}")
            table.add_row(name, f"{count}", f"{said[0]['ops']}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
