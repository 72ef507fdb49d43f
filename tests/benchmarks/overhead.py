"""What a placement costs where there is nothing to gain: one device, one stage, one microbatch, against plain Keras.

`python -m tests.benchmarks.overhead` lets three contenders take turns, each in a process of its own with TensorFlow's
own choice of threads: the compiled Keras model twice, and the placed model. It prints the ratio of their step times as
`fit` runs them, and beside it that of the two that are the same: what differs less is not seen. Fourteen models take
about 20 minutes on 2 cores. All batches are said to have equally many rows, for which Keras' step is traced, and so is
a placed one with loops: with `--any-rows` they are not, as `Dataset.batch` leaves it open without `drop_remainder`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from tests.benchmarks.overhead_models import MODELS
from tests.benchmarks.turns import Contender, answer_turns, take_turns

TURN_SECONDS = 0.1
"""A turn is as many steps as take about this long."""
BOUND = 1.02
"""The ratio of medians up to which a placed step costs nothing."""
CONTENDERS = {"Keras": "keras", "placed": "placed", "Keras again": "keras"}


def _contender(name: str, way: str, *, any_rows: bool) -> None:
    """Answer each line on stdin with the seconds of some training steps."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import partitioner

    model, data = MODELS[name]()
    if way == "placed":
        model = partitioner.auto_place(model, devices=["CPU:0"], batch_size=len(data[0]), strategy="single")
    whole = tf.data.Dataset.from_tensors(data)
    batches = iter((whole.unbatch().batch(len(data[0])).cache() if any_rows else whole).repeat())
    model.make_train_function()

    def step() -> None:
        model.train_function(batches)["loss"].numpy()

    for _ in range(3):
        step()
    start = time.perf_counter()
    step()
    num_steps = max(1, round(TURN_SECONDS / (time.perf_counter() - start)))

    def turn() -> None:
        for _ in range(num_steps):
            step()

    answer_turns(turn, {"steps": num_steps})


def main() -> None:
    """Run the contenders in turns for each model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL", help=", ".join(MODELS)
    )
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--any-rows", action="store_true", help="batches whose number of rows is not fixed")
    options = parser.parse_args()
    if options.contender:
        _contender(*options.contender, any_rows=options.any_rows)
        return
    found: dict[str, Mapping[str, Contender]] = {}
    for name in options.models:
        rows = ["--any-rows"] if options.any_rows else []
        commands = {key: [__spec__.name, "--contender", name, way, *rows] for key, way in CONTENDERS.items()}
        found[name] = take_turns(commands, options.rounds)
        Console(width=120, stderr=True).print(_table({name: found[name]}))
    Console(width=120).print(_table(found))


def _table(found: Mapping[str, Mapping[str, Contender]]) -> Table:
    table = Table(title="training step on one device: placed over plain Keras, medians")
    for column in ("model", "Keras ms", "placed ms", "placed / Keras", "Keras / Keras", "verdict"):
        table.add_column(column, justify="left" if column in ("model", "verdict") else "right")
    for name, contenders in found.items():
        keras, placed, again = (
            1e3 * contender.median / contender.said["steps"] for contender in map(contenders.__getitem__, CONTENDERS)
        )
        spread = max(keras, again) / min(keras, again)
        table.add_row(
            name,
            f"{keras:.2f}",
            f"{placed:.2f}",
            f"{placed / keras:.3f}",
            f"{again / keras:.3f}",
            "nothing" if placed / keras <= max(BOUND, spread) else "costs",
        )
    return table


if __name__ == "__main__":
    main()
