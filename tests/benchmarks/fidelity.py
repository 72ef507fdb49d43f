"""How far predicted step times are from measured ones, on models that the calibration has not seen.

`python -m tests.benchmarks.fidelity` first measures the ops of every model on one core, each in a process of its own.
Then it plans every model with what was measured on all the *others* (leave one out), and once more with its own ops
measured there and then (what `--costs measured` does), and runs that plan: training and inference, on one device, and
training on two, split in one piece and in 8 microbatches, in turns. Logical CPU devices run one op at a time, each on
one thread; one device is held to a core. A step is a call of the emitted function: what Keras adds to each (1 to 2 ms,
placed or not) is not in the plan. In each turn steps run for a second, and the median counts, as training runs warm.
Only rounds in which two cores were free count. Of these it is the faster half, as of the runs from which ops are
measured: other work of the machine only slows runs down. The median of all that count is beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from cost_models.measured import MeasuredCosts, MeasuredDevice
from partitioner.ir.step import StepKind
from tests.asking import asked
from tests.benchmarks.busy_loops import take_free_turns
from tests.benchmarks.fidelity_models import MODELS
from tests.benchmarks.logical_devices import start
from tests.benchmarks.turns import Contender, answer_turns, take_turns

TURN_SECONDS = 1.0
WAYS = ("train", "infer", "split on 2", "train on 2")


def _start(way: str) -> list[str]:
    """Set TensorFlow up for a way to run; the devices."""
    num_devices = 2 if way.endswith("on 2") else 1
    if num_devices == 1:
        os.sched_setaffinity(0, {0})
    return start(num_devices, serial=True)


def _plan(model: Any, way: str, devices: Sequence[str], rows: int, costs: Any) -> Any:
    import partitioner

    staged = {"microbatches": min(8, rows), "schedule": "1f1b"}
    fixed: dict[str, Any] = staged if way == "train on 2" else {"microbatches": 1}
    return partitioner.plan(
        model,
        **asked(
            devices=devices,
            batch_size=rows,
            training=way != "infer",
            strategy="single" if len(devices) == 1 else "layer-split",
            costs=costs,
            time_limit=15,
            **fixed,
        ),
    )


def _measure(name: str, path: Path) -> None:
    """Write what the ops of a model's training and inference take."""
    devices = _start("train")
    os.environ["XDG_CACHE_HOME"] = str(path.parent / f"cache-{name}")
    model, (x, _) = MODELS[name]()
    for way in ("train", "infer"):
        _plan(model, way, devices, len(x), "measured").save_costs(path)
    print("{}", flush=True)


def _run(name: str, way: str, others: Path) -> None:
    """Say what was predicted, then answer each line on stdin with the seconds of a step."""
    import tensorflow as tf

    import partitioner
    from partitioner.emit.graph.rewriting import as_allowed

    devices = _start(way)
    os.environ["XDG_CACHE_HOME"] = str(others.parent / f"cache-{name}-{way}")  # measured now, lest the machine changed
    model, data = MODELS[name]()
    x, _ = data
    plans = {
        kind: _plan(model, way, devices, len(x), costs) for kind, costs in (("others", others), ("own", "measured"))
    }
    predicted = {kind: plan.predicted.step_seconds for kind, plan in plans.items()}
    placed = partitioner.place(model, plans["own"])
    kind = StepKind.PREDICT if way == "infer" else StepKind.TRAIN
    labels = None if way == "infer" else tf.constant(data[1])
    arguments = placed.program.standardize(kind, (tf.constant(x), labels, None))
    specs = next(specs for one, specs in placed.program.signatures() if one is kind)
    step = placed.program.function(kind, specs)

    def turn() -> None:
        with as_allowed(is_staged=placed.program.is_staged):
            step(*arguments)["y_pred" if way == "infer" else "loss"].numpy()

    answer_turns(turn, predicted, seconds=TURN_SECONDS)


def _merged(paths: Sequence[Path]) -> MeasuredCosts:
    """What several files know of one kind of device; its overhead is the median."""
    found = [msgspec.json.decode(path.read_bytes(), type=MeasuredCosts) for path in paths]
    devices = [costs.devices[0] for costs in found]
    ops = {key: op for device in devices for key, op in device.ops.items()}
    overhead = statistics.median(device.overhead_seconds for device in devices)
    one = devices[0]
    device = MeasuredDevice(
        type=one.type, title=one.title, hardware=one.hardware, overhead_seconds=overhead, ops=ops, call=one.call
    )
    return MeasuredCosts(versions=found[0].versions, devices=(device,), links=found[0].links)


def main() -> None:
    """Measure, leave one out, run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count")
    parser.add_argument("--free", type=float, default=1.9, help="cores that two busy loops got in a round that counts")
    parser.add_argument(
        "--folder", type=Path, help="keep what was measured here, and use what is there already, of other models too"
    )
    options = parser.parse_args()
    if options.measure:
        _measure(options.measure[0], Path(options.measure[1]))
    elif options.run:
        name, way, others = options.run
        _run(name, way, Path(others))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            _compare(options, options.folder or Path(temporary))


def _compare(options: argparse.Namespace, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.json" for name in MODELS}
    for name in options.models:
        if not files[name].exists():
            take_turns({name: [__spec__.name, "--measure", name, files[name]]}, 0)
    found: dict[tuple[str, str], Contender] = {}
    for name in options.models:
        others = folder / f"without-{name}.json"
        rest = [path for other, path in files.items() if other != name and path.exists()]
        if not rest:
            raise SystemExit("nothing to predict unseen models from: name more --models, or a --folder with some")
        others.write_bytes(msgspec.json.encode(_merged(rest)))
        runs = {way: [__spec__.name, "--run", name, way, others] for way in options.ways}
        turns, told = take_free_turns(runs, options.rounds, options.free)
        of_model = {(name, way): contender for way, contender in turns.items()}
        Console(width=120, stderr=True).print(_table(of_model), told)
        found |= of_model
    Console(width=120).print(_table(found))


def _table(found: dict[tuple[str, str], Contender]) -> Table:
    from partitioner.measure.step_times import undisturbed

    table = Table(title="step time predicted against measured (median of the faster half of the rounds)")
    for column in ("model", "", "all ms", "measured ms", "unseen ms", "error", "own ops ms", "error"):
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    errors: dict[tuple[str, str], list[float]] = {}
    for (name, way), contender in found.items():
        measured = undisturbed(contender.seconds)
        cells = [name, way, f"{contender.median * 1e3:.1f}", f"{measured * 1e3:.1f}"]
        for kind in ("others", "own"):
            error = contender.said[kind] / measured - 1
            errors.setdefault((way, kind), []).append(abs(error))
            cells += [f"{contender.said[kind] * 1e3:.1f}", f"{error:+.1%}"]
        table.add_row(*cells)
    for way in dict.fromkeys(way for _, way in found):
        for what, how in (("mean", statistics.mean), ("largest", max)):
            unseen, own = (f"{how(errors[way, kind]):.1%}" for kind in ("others", "own"))
            table.add_row(f"{what} error", way, "", "", "", unseen, "", own)
    return table


if __name__ == "__main__":
    main()
