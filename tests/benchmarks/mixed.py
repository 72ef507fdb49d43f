"""Replicas against TensorFlow's own, and what `auto` chooses against every strategy, by measured step time.

`python -m tests.benchmarks.mixed` measures the ops of each model, plans it by each strategy with what was measured, and
runs the plans in turns, each in a process of its own, on two logical CPU devices that run one op at a time, as a GPU
does and as plans assume: else a single device would use both cores. Beside them runs the unplaced model under
`tf.distribute.MirroredStrategy` on two logical devices, each replica with half of the batch; as its devices run ops as
they like, the mirrored plan takes turns in that way too, with as many threads. It prints a table per model, and one of
all: mirrored over MirroredStrategy, both free in that way, and `auto` over the fastest. Strategies that give the same
plan count as one, with the turns of all. In each turn steps run for half a second, and the median counts, as training
runs warm. Only rounds in which two cores were free count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.asking import asked
from tests.benchmarks.busy_loops import take_free_turns
from tests.benchmarks.logical_devices import start
from tests.benchmarks.mixed_models import MODELS
from tests.benchmarks.turns import Contender, answer_turns, take_turns

DEVICES = ["CPU:0", "CPU:1"]
TURN_SECONDS = 0.5
PEER = "MirroredStrategy"
FREE = "mirrored, free"
WAYS = ("single", "layer-split", "mirrored", "auto")


def _start(way: str) -> None:
    if way != PEER:
        start(len(DEVICES), serial=way != FREE)
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    # As its users set it up, with all of TensorFlow's graph rewrites.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(len(DEVICES))
    processor, *_ = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * len(DEVICES))


def _plan(name: str, strategy: str, costs: str | Path) -> tuple[Any, Any, Any]:
    import partitioner

    model, data = MODELS[name]()
    plan = partitioner.plan(
        model,
        **asked(devices=DEVICES, batch_size=len(data[0]), strategy=strategy, costs=costs, time_limit=5, source=name),
    )
    return model, data, plan


def _measure(name: str, path: Path) -> None:
    """Write what the model's ops take, on every size of microbatch that may be chosen."""
    _start("auto")
    os.environ["XDG_CACHE_HOME"] = str(path.parent)
    _, _, plan = _plan(name, "auto", "measured")
    plan.save_costs(path)
    print("{}", flush=True)


def _run(name: str, way: str, costs: Path) -> None:
    """Say what was predicted, then answer each line on stdin with the seconds of a training step."""
    import tensorflow as tf

    import partitioner

    _start(way)
    if way == PEER:
        model, steps = _peer(name)
        said = {"text": "", "seconds": None, "plan": PEER}
    else:
        given, data, plan = _plan(name, "mirrored" if way == FREE else way, costs)
        model = partitioner.place(given, plan)
        steps = iter(tf.data.Dataset.from_tensors(data).repeat())
        text = f"{plan.strategy}, {plan.num_replicas} x {plan.num_stages}, {plan.num_microbatches} microbatches"
        stages = [(stage.device, stage.replica, stage.recompute) for stage in plan.stages]
        ran = [sorted(plan.placement.items()), stages, plan.num_microbatches, plan.schedule]
        seconds = None if way == FREE else plan.predicted.step_seconds
        said = {"text": text, "seconds": seconds, "plan": json.dumps([way == FREE, *ran])}
    model.make_train_function()
    answer_turns(lambda: _loss(model.train_function(steps)), said, seconds=TURN_SECONDS)


def _peer(name: str) -> tuple[Any, Any]:
    """The model under MirroredStrategy, and batches of which each replica gets a half."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(DEVICES)
    with strategy.scope():
        model, (x, y) = MODELS[name]()
    model.fit(x, y, batch_size=len(x), verbose=0)  # makes the optimizer's variables, which a step by itself fails to
    rows = len(x) // len(DEVICES)
    halves = tf.data.Dataset.from_tensors((x[:rows], y[:rows])).repeat()
    return model, iter(strategy.distribute_datasets_from_function(lambda _: halves))


def _loss(logs: Mapping[str, Any]) -> float:
    return float(logs["loss"])


def _compare(name: str, rounds: int, free: float, folder: Path, console: Console) -> dict[str, Contender]:
    costs = folder / f"{name}.json"
    if not costs.exists():
        take_turns({name: [__spec__.name, "--measure", name, costs]}, 0)
    ways: dict[str, Sequence[object]] = {way: [__spec__.name, "--run", name, way, costs] for way in (*WAYS, FREE, PEER)}
    turns, told = take_free_turns(ways, rounds, free)
    found = _joined(turns)
    table = Table(title=name, title_justify="left")
    for column in ("", "plan", "measured ms", "predicted ms"):
        table.add_column(column, justify="right" if column.endswith("ms") else "left")
    for way, one in sorted(found.items(), key=lambda item: item[1].median):
        predicted = one.said["seconds"]
        table.add_row(way, one.said["text"], f"{one.median * 1e3:.2f}", f"{predicted * 1e3:.2f}" if predicted else "")
    console.print(table)
    console.print(told)
    return found


def _joined(found: Mapping[str, Contender]) -> dict[str, Contender]:
    """Contenders that run the same plan, each with the turns of all of them: what differs is chance."""
    turns: dict[str, list[float]] = {}
    for one in found.values():
        turns.setdefault(one.said["plan"], []).extend(one.seconds)
    return {way: replace(one, seconds=turns[one.said["plan"]]) for way, one in found.items()}


def _summary(found: Mapping[str, Mapping[str, Contender]]) -> Table:
    table = Table(title="all models", title_justify="left")
    for column in ("", f"{FREE} ms", f"{PEER} ms", "ratio", "auto chose", "auto over the fastest", "fastest"):
        table.add_column(column, justify="left" if column in ("", "auto chose", "fastest") else "right")
    for name, ways in found.items():
        mirrored, peer, auto = ways[FREE].median, ways[PEER].median, ways["auto"]
        best = min((way for way in WAYS if way != "auto"), key=lambda way: ways[way].median)
        over = auto.median / min(ways[best].median, auto.median)
        figures = (f"{mirrored * 1e3:.2f}", f"{peer * 1e3:.2f}", f"{mirrored / peer:.2f}")
        table.add_row(name, *figures, auto.said["text"], f"{over - 1:+.1%}", best)
    return table


def main() -> None:
    """Measure, plan, run, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count")
    parser.add_argument("--free", type=float, default=1.9, help="cores that two busy loops got in a round that counts")
    parser.add_argument("--folder", type=Path, help="keep what was measured here, and use what is there already")
    options = parser.parse_args()
    if options.measure:
        name, costs = options.measure
        _measure(name, Path(costs))
    elif options.run:
        name, way, costs = options.run
        _run(name, way, Path(costs))
    else:
        console = Console(width=140)
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            found = {name: _compare(name, options.rounds, options.free, folder, console) for name in options.models}
        console.print(_summary(found))


if __name__ == "__main__":
    main()
