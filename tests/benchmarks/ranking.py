"""Whether plans are ranked as they turn out: predicted against measured step times of many plans of one model.

`python -m tests.benchmarks.ranking` measures the ops of a model, then plans it in many ways with what was measured: on
one device and mirrored, whole and in 8 microbatches; cut in two after each of its blocks in 8 microbatches; cut where
the planner wants in 1 to 32 microbatches, and with recompute; and as the planner chooses, of all ways and of splits. It
runs each plan, in turns, in a process of its own, on two logical CPU devices that run one op at a time, and prints
Kendall's tau between predicted and measured times, and how far what the planner chose is from the best. With
`--inference` it plans the forward pass alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from tests.asking import asked
from tests.benchmarks.logical_devices import start
from tests.benchmarks.pipeline_workloads import WORKLOADS, batch, keras_model
from tests.benchmarks.turns import Contender, answer_turns, take_turns

DEVICES = ["CPU:0", "CPU:1"]
MICROBATCHES = (1, 2, 4, 8, 16, 32)
NUM_BLOCKS = 8
# Left to the planner: everything, and everything but to split.
CHOSEN: dict[str, Mapping[str, Any]] = {"auto": {}, "auto split": {"strategy": "layer-split"}}


def _tapering() -> tuple[Any, Any]:
    """Blocks that get lighter, so that no two cuts are equally good."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((1024,))
    for index in range(NUM_BLOCKS):
        x = layers.Dense(1024 - 96 * index, activation="gelu", name=f"block_{index}")(x)
    model: Any = keras.Model(inputs, layers.Dense(16, name="scores")(x))
    model.compile("adam", "mse", jit_compile=False)
    generator = np.random.default_rng(0)
    rows = 2048
    return model, (
        generator.standard_normal((rows, 1024), np.float32),
        generator.standard_normal((rows, 16), np.float32),
    )


def _workload(name: str) -> tuple[Any, Any]:
    return keras_model(WORKLOADS[name]), batch(WORKLOADS[name])


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {"tapering": _tapering, "decoder": partial(_workload, "decoder")}


def ways(model: str, training: bool) -> dict[str, Mapping[str, Any]]:
    """The plans to compare: by title, arguments of `plan`."""
    split = {"strategy": "layer-split"}
    found: dict[str, Mapping[str, Any]] = {}
    for title, strategy in (("one device", "single"), ("mirrored", "mirrored")):
        for count in (1, 8):
            found[f"{title}, {count} microbatches"] = {"strategy": strategy, "microbatches": count}
    if training:
        found["8 microbatches, recompute"] = split | {"microbatches": 8, "schedule": "1f1b", "recompute": "all"}
    for count in MICROBATCHES:
        found[f"{count} microbatches"] = split | {
            "microbatches": count,
            "schedule": "1f1b" if count > 1 else "sequential",
        }
    if model == "tapering":
        for cut in range(1, NUM_BLOCKS):
            pins = {f"block_{index}": DEVICES[index >= cut] for index in range(NUM_BLOCKS)}
            found[f"cut after {cut}"] = split | {"microbatches": 8, "schedule": "1f1b", "pins": pins}
    return found | CHOSEN


def _measure(name: str, training: bool, path: Path) -> None:
    """Write what the model's ops take, one at a time."""
    import partitioner

    start(len(DEVICES), num_threads=1, serial=True)
    os.environ["XDG_CACHE_HOME"] = str(path.parent)
    model, (x, _) = MODELS[name]()
    asking = asked(devices=DEVICES, batch_size=len(x), costs="measured", training=training, time_limit=5)
    partitioner.plan(model, **asking).save_costs(path)
    print("{}", flush=True)


def _run(name: str, way: str, training: bool, costs: Path) -> None:
    """Say what was predicted, then answer each line on stdin with the seconds of a step."""
    import tensorflow as tf

    import partitioner

    start(len(DEVICES), serial=True)
    model, data = MODELS[name]()
    arguments = dict(ways(name, training)[way])
    if not training and arguments.get("schedule") == "1f1b":
        arguments["schedule"] = "gpipe"
    plan = partitioner.plan(
        model,
        **asked(devices=DEVICES, batch_size=len(data[0]), training=training, costs=costs, time_limit=20, **arguments),
    )
    text = f"{plan.strategy}, {plan.num_microbatches} microbatches, {plan.schedule}"
    placed: Any = partitioner.place(model, plan)
    steps = iter(tf.data.Dataset.from_tensors(data if training else data[:1]).repeat())
    said = {"seconds": plan.predicted.step_seconds, "text": text}
    if training:
        placed.make_train_function()
        answer_turns(lambda: placed.train_function(steps)["loss"].numpy(), said)
    else:
        placed.make_predict_function()
        answer_turns(lambda: [y.numpy() for y in tf.nest.flatten(placed.predict_function([next(steps)]))], said)


def _compare(name: str, training: bool, rounds: int, folder: Path) -> None:
    kind = "train" if training else "infer"
    costs = folder / f"{name}-{kind}.json"
    if not costs.exists():
        take_turns({name: [__spec__.name, "--measure", name, kind, costs]}, 0)
    contenders: dict[str, Sequence[object]] = {
        way: [__spec__.name, "--run", name, way, kind, costs] for way in ways(name, training)
    }
    found = take_turns(contenders, rounds)
    table = Table(title=f"{name} ({kind}): plans by measured step time (median)", title_justify="left")
    for column in ("", "plan", "measured ms", "predicted ms", "error"):
        table.add_column(column, justify="right" if column.endswith(("ms", "error")) else "left")
    for way, one in sorted(found.items(), key=lambda item: item[1].median):
        predicted = one.said["seconds"]
        error = predicted / one.median - 1
        table.add_row(way, one.said["text"], f"{one.median * 1e3:.1f}", f"{predicted * 1e3:.1f}", f"{error:+.1%}")
    console = Console(width=120)
    console.print(table)
    console.print(_summary(found))


def _summary(found: Mapping[str, Contender]) -> str:
    # A cut that is what the planner wants anyway is the same plan a second time.
    fixed = {(one.said["seconds"], one.said["text"]): one for way, one in found.items() if way not in CHOSEN}
    tau: Any = kendalltau([seconds for seconds, _ in fixed], [one.median for one in fixed.values()])
    lines = [f"Kendall's tau over {len(fixed)} plans: {tau.statistic:.3f}."]
    for way, arguments in CHOSEN.items():
        asked = arguments.get("strategy", "")
        best = min((one for (_, text), one in fixed.items() if text.startswith(asked)), key=lambda one: one.median)
        over = found[way].median / best.median - 1
        lines.append(f"{way}: {found[way].said['text']}; {over:+.1%} over the best measured, {best.said['text']}")
    return "\n".join(lines)


def main() -> None:
    """Measure, plan, run, and print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--inference", action="store_true", help="forward passes alone")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="keep what was measured here, and use what is there already")
    options = parser.parse_args()
    if options.measure:
        name, kind, costs = options.measure
        _measure(name, kind == "train", Path(costs))
    elif options.run:
        name, way, kind, costs = options.run
        _run(name, way, kind == "train", Path(costs))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            for name in options.models:
                _compare(name, not options.inference, options.rounds, folder)


if __name__ == "__main__":
    main()
