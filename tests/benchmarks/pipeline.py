"""Microbatched pipelines on two devices against one serial device: step time measured and predicted.

`python -m tests.benchmarks.pipeline` lets these take turns, each in a process of its own (of any, the one-core
contenders are held to core 0, the others have two logical CPU devices with one intra-op thread each):

- `serial`: the unplaced, compiled Keras model on one core; every speed-up is over this one;
- `tf.device`: the tutorial way, each half of the layers built in a `tf.device` scope;
- `split`: planned and placed over two devices, without microbatches;
- `1f1b 8` and so on: the same in as many microbatches;
- with `--peer torch`, torch.distributed.pipelining with gloo, one process per stage on a core of its own.

Next to each speed-up stand what was predicted and the share reached of the ideal for two equal stages and M
microbatches, 2M / (M + 1). Two busy loops take turns as well: where both together take as long as one alone, two cores
were free; the speed-ups count only the rounds in which they got at least `--free` cores.

A device that waits leaves its core to the other one, which then runs two of its ops at once, so that pipelines reach
more than their ideal. With `--one-at-a-time` planned devices run one op after the other, as GPUs do.
"""

from __future__ import annotations

import argparse
import os
import statistics

from rich.console import Console
from rich.table import Table

from tests.asking import asked
from tests.benchmarks.busy_loops import take_free_turns
from tests.benchmarks.logical_devices import start
from tests.benchmarks.pipeline_workloads import WORKLOADS, Workload, batch, keras_model
from tests.benchmarks.turns import Contender, answer_turns

DEVICES = ["CPU:0", "CPU:1"]
PIPELINES = ["1f1b 4", "1f1b 8", "gpipe 8", "zb-h1 8", "zb-h2 8"]


def _contender(workload: Workload, way: str, *, one_at_a_time: bool) -> None:
    """Answer each line on stdin with the seconds of one training step."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import partitioner

    predicted: dict[str, float] = {}
    if way == "serial":
        os.sched_setaffinity(0, {0})
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        model = keras_model(workload)
    else:
        start(len(DEVICES), serial=one_at_a_time)
    if way == "tf.device":
        model = keras_model(workload, lambda block: tf.device(DEVICES[block * len(DEVICES) // workload.depth]))
    elif way != "serial":
        schedule, num_microbatches = ("sequential", 1) if way == "split" else way.split()
        model = keras_model(workload)
        plan = partitioner.plan(
            model,
            **asked(
                devices=DEVICES,
                batch_size=workload.batch_size,
                strategy="layer-split",
                schedule=schedule,
                microbatches=int(num_microbatches),
                time_limit=20,
            ),
        )
        single = min(b.step_seconds for b in plan.baselines if b.name.startswith("single"))
        predicted = {"speed_up": single / plan.predicted.step_seconds}
        model = partitioner.place(model, plan)
    data = iter(tf.data.Dataset.from_tensors(batch(workload)).repeat())
    model.make_train_function()
    answer_turns(lambda: model.train_function(data)["loss"].numpy(), predicted)


def main() -> None:
    """Run the contenders in turns and print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", nargs=2, metavar=("WORKLOAD", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--pipelines", nargs="+", default=PIPELINES, help="schedule and microbatches, as in '1f1b 8'")
    parser.add_argument("--peer", choices=["torch"], help="run the same models in torch.distributed.pipelining too")
    parser.add_argument("--one-at-a-time", action="store_true", help="planned devices run one op at a time")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count")
    parser.add_argument("--free", type=float, default=1.9, help="cores that two busy loops got in a round that counts")
    options = parser.parse_args()
    if options.contender:
        name, way = options.contender
        _contender(WORKLOADS[name], way, one_at_a_time=options.one_at_a_time)
        return
    for name in options.workloads:
        _race(name, options)


def _race(name: str, options: argparse.Namespace) -> None:
    ways = ["serial", "tf.device", "split", *options.pipelines]
    also = ["--one-at-a-time"] if options.one_at_a_time else []
    contenders = {way: [__spec__.name, *also, "--contender", name, way] for way in ways}
    if options.peer:
        for way in ["serial 1", *options.pipelines]:
            contenders["torch " + way.removesuffix(" 1")] = ["tests.benchmarks.pipeline_torch", name, *way.split()]
    found, told = take_free_turns(contenders, options.rounds, options.free)
    table = Table(title=f"{name}: {WORKLOADS[name].text}", title_justify="left")
    for column in ("", "step ms", "speed-up", "least", "most", "predicted", "ideal", "of ideal"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for title, contender in found.items():
        base = found["torch serial" if title.startswith("torch") else "serial"]
        table.add_row(title, *_cells(contender, base, title))
    console = Console(width=120)
    console.print(table)
    console.print(told)


def _cells(found: Contender, base: Contender, title: str) -> list[str]:
    speed_ups = [alone / own for alone, own in zip(base.seconds, found.seconds, strict=True)]
    speed_up = statistics.median(speed_ups)
    cells = [f"{found.median * 1e3:.1f}", f"{speed_up:.2f}", f"{min(speed_ups):.2f}", f"{max(speed_ups):.2f}"]
    predicted = found.said.get("speed_up")
    cells.append("" if predicted is None else f"{predicted:.2f}")
    *_, last = title.split()
    if last.isdigit() and int(last) > 1:
        ideal = 2 * int(last) / (int(last) + 1)
        cells += [f"{ideal:.2f}", f"{speed_up / ideal:.0%}"]
    return cells


if __name__ == "__main__":
    main()
