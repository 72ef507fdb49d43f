"""Steps on the GPU of this machine beside what is planned: `python -m tests.benchmarks.gpu_steps ROWS.csv`.

Rows are as `published` takes them, of one GPU of the kind that is here; their throughput is not read. Each is planned
from the catalogue, then trained as a plain Keras model and placed, in a process of its own: seconds of a step in a
series that ends with the loss on the host, and the most bytes that the placed step held. Processes get ready side by
side (`--jobs`), and use the GPU one at a time. `--rows FILE` writes the rows with what the placed model trained in a
second, for `published` and `calibrate`; `--profiles FOLDER` what the profiler wrote of a placed step.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.published import rows_of

DEVICE = "GPU:0"
SERIES, SECONDS = 3, 0.5
"""How many series are timed, and how long one is at least."""
WARM_UPS = 3
_SIZES = ("model", "hardware", "precision", "batch", "xla")
_COLUMNS = (*_SIZES, "Keras ms", "placed ms", "predicted ms", "error", "peak GiB", "predicted GiB", "own ops ms", "")


def timed(step: Callable[[], Any]) -> float:
    """Median seconds of a step of some series; `step` returns a tensor, which is fetched at the end of each."""
    for _ in range(WARM_UPS):
        step().numpy()
    start = time.perf_counter()
    step().numpy()
    num_steps = max(2, round(SECONDS / (time.perf_counter() - start)))

    def series() -> float:
        start = time.perf_counter()
        for _ in range(num_steps - 1):
            step()
        step().numpy()
        return (time.perf_counter() - start) / num_steps

    return statistics.median(series() for _ in range(SERIES))


def measure(row: dict[str, str], lock: Path, profiles: Path | None, *, own_ops: bool, plain: bool) -> dict[str, Any]:
    """Plan, place and time a row in this process; the GPU is this process's while it holds the lock."""
    import tensorflow as tf

    import partitioner
    from partitioner.emit.cluster.runtime import forget_peaks, peak_bytes
    from partitioner.emit.graph.rewriting import as_allowed
    from partitioner.ir.step import StepKind
    from tests.benchmarks.published_models import compiled

    is_compiled = row["xla"] == "1"
    model = compiled(row["model"], row["input"], row["optimizer"], row["precision"])
    model.jit_compile = is_compiled
    batch = int(row["batch"])

    def plan(costs: str) -> Any:
        return partitioner.plan(
            model,
            [DEVICE],
            batch_size=batch,
            strategy="single",
            microbatches=1,
            costs=costs,
            step=partitioner.Step(jit_compile=is_compiled),
        )

    planned = plan("analytic")
    predicted = planned.predicted
    found: dict[str, Any] = {
        "predicted": predicted.step_seconds,
        "predicted peak": max(predicted.peak_bytes.values()),
        "hardware": planned.devices[0].hardware,
    }
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        x, y = _batch(model.inputs, batch), tf.zeros([batch, *model.outputs[0].shape[1:-1]], tf.int32)
        if plain:
            # tf.data would stack a list.
            by_name = {one.name: values for one, values in zip(model.inputs, x, strict=True)}
            batches = iter(tf.data.Dataset.from_tensors((by_name if len(x) > 1 else x[0], y)).repeat())
            model.make_train_function()
            found["keras"] = timed(lambda: model.train_function(batches)["loss"])
        if own_ops:
            found["own"] = plan("measured").predicted.step_seconds
        placed = partitioner.place(model, planned)
        arguments = placed.program.standardize(StepKind.TRAIN, (x if len(x) > 1 else x[0], y, None))
        specs = next(specs for kind, specs in placed.program.signatures() if kind is StepKind.TRAIN)
        function = placed.program.function(StepKind.TRAIN, specs)

        def step() -> Any:
            with as_allowed(is_staged=placed.program.is_staged):
                return function(*arguments)["loss"]

        step().numpy()
        forget_peaks([DEVICE])
        found["placed"] = timed(step)
        found["peak"] = peak_bytes(DEVICE)
        if profiles:
            _profile(step, profiles / f"{row['model']}-{row['precision']}-{batch}-{row['xla']}.xplane.pb")
    return found


def _batch(inputs: Sequence[Any], rows: int) -> list[Any]:
    """Random images, or tokens of a small vocabulary, on the GPU where TensorFlow puts them."""
    import tensorflow as tf

    def random(one: Any) -> Any:
        shape = [rows, *one.shape[1:]]
        is_float = one.dtype.startswith("float") or one.dtype.startswith("bfloat")
        return tf.random.normal(shape) if is_float else tf.random.uniform(shape, maxval=2, dtype=tf.int32)

    return [random(one) for one in inputs]


def _profile(step: Callable[[], Any], path: Path) -> None:
    """Write what the profiler records of three steps."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(3):
                step().numpy()
        shutil.copy(next(Path(folder).rglob("*.xplane.pb")), path)


def _measured_alone(options: argparse.Namespace, number: int, lock: Path) -> dict[str, Any]:
    """`measure` in a process of its own, whose memory ends with it."""
    own = ["--own-ops"] if options.own_ops else []
    own += ["--placed-only"] if options.placed_only else []
    own += ["--profiles", str(options.profiles)] if options.profiles else []
    command = [sys.executable, "-m", __spec__.name, str(options.csv), "--row", str(number), str(lock), *own]
    # What others hold while they get ready is little; a process takes what it needs.
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet, check=False)
    line = next((line for line in ended.stdout.splitlines() if line.startswith("{")), None)
    if line is None:
        print(ended.stderr, file=sys.stderr)
        return {"why": (ended.stderr.strip().splitlines() or ["killed"])[-1]}
    print(number, line, file=sys.stderr, flush=True)
    return json.loads(line)


def main() -> None:
    """Measure every row, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, metavar="ROWS.csv")
    parser.add_argument("--rows", type=Path, metavar="FILE")
    parser.add_argument("--profiles", type=Path, metavar="FOLDER")
    parser.add_argument("--own-ops", action="store_true", help="also plan with the ops measured")
    parser.add_argument("--placed-only", action="store_true", help="without plain Keras, in half the time")
    parser.add_argument("--jobs", type=int, default=1, help="processes that get ready at once")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = rows_of(options.csv)
    if options.row:
        number, lock = options.row
        ways = {"own_ops": options.own_ops, "plain": not options.placed_only}
        print(json.dumps(measure(rows[int(number)], Path(lock), options.profiles, **ways)))
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        lock = Path(folder) / "lock"
        found = list(pool.map(lambda number: _measured_alone(options, number, lock), range(len(rows))))
    Console(width=180).print(_table(rows, found))
    if options.rows:
        _write(options.rows, rows, found)


def _write(path: Path, rows: Sequence[dict[str, str]], found: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row, one in zip(rows, found, strict=True):
            if "placed" in one:
                writer.writerow(row | {"per_second": f"{int(row['batch']) / one['placed']:.1f}", "source": "gpu_steps"})


def _table(rows: Sequence[dict[str, str]], found: Sequence[dict[str, Any]]) -> Table:
    table, errors = Table(), []
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("model", "hardware", "precision", "") else "right")
    for row, one in zip(rows, found, strict=True):
        sizes = [row[name] for name in _SIZES]
        if "placed" not in one:
            table.add_row(*sizes, *[""] * (len(_COLUMNS) - len(sizes) - 1), one["why"])
            continue
        errors.append(abs(one["predicted"] / one["placed"] - 1))
        table.add_row(
            *sizes,
            *(f"{1e3 * one[key]:.1f}" if key in one else "" for key in ("keras", "placed", "predicted")),
            f"{one['predicted'] / one['placed'] - 1:+.0%}",
            *(f"{one[key] / 2**30:.2f}" for key in ("peak", "predicted peak")),
            f"{1e3 * one['own']:.1f}" if "own" in one else "",
            "" if one["hardware"] == row["hardware"] else f"planned for {one['hardware']}",
        )
    if errors:
        table.title = f"mean error {statistics.mean(errors):.0%}, largest {max(errors):.0%}, of {len(errors)} rows"
    return table


if __name__ == "__main__":
    main()
