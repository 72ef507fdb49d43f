"""Steps that are predicted beside steps that others have published: `python -m tests.benchmarks.published ROWS.csv`.

A row is a model of `published_models.py` on so many GPUs of a kind:

    model,hardware,gpus,precision,batch,mode,xla,per_second,source,input,optimizer,link,remark

`batch` is that of each GPU, `per_second` counts samples of all of them, `xla` is 1 where the publisher compiled with
XLA. Lines that begin with # are comments. Each row is planned in a process of its own, without a GPU. The error is
predicted over published step, less 1; beside it stands the largest batch of a GPU that is predicted to fit.
`measured_gpu.csv` has rows that `gpu_steps` measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cost_models.catalogue import device_named

TIME_LIMIT = 10.0
_FIELDS = ("model", "hardware", "gpus", "precision", "batch", "xla")
_COLUMNS = (*_FIELDS, "published ms", "predicted ms", "error", "fits", "largest batch")
# Through which the GPUs of a published row of several sum their gradients.
LINKS = {"p100": "nvlink1", "v100-16gb": "nvlink2", "v100-32gb": "nvlink2", "a100-40gb": "nvlink3"}
LINKS |= {"a100-80gb": "nvlink3", "h100-sxm": "nvlink4"}
_ROOT = Path(__file__).resolve().parents[2]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return list(csv.DictReader(lines))


def published_seconds(row: dict[str, str]) -> float:
    """A step of the whole batch."""
    return int(row["batch"]) * int(row["gpus"]) / float(row["per_second"])


def is_persistent(row: dict[str, str]) -> bool:
    """Whether batches were normalised by the kernels that NVIDIA's scripts choose; `gpu_steps` leaves it as it is."""
    return row["source"] != "gpu_steps"


def predicted(row: dict[str, str]) -> dict[str, Any]:
    """Plan a row in this process: the predicted step, or why there is none."""
    import partitioner
    from tests.benchmarks.published_models import compiled

    gpus = int(row["gpus"])
    model = compiled(row["model"], row["input"], row["optimizer"], row["precision"])
    try:
        plan = partitioner.plan(
            model,
            [f"GPU:{index}" for index in range(gpus)],
            hardware=row["hardware"],
            batch_size=int(row["batch"]) * gpus,
            strategy="single" if gpus == 1 else "mirrored",
            microbatches=1,
            time_limit=TIME_LIMIT,
            step=partitioner.Step(training=row["mode"] == "train", jit_compile=row["xla"] == "1"),
            link=LINKS.get(row["hardware"]),
        )
    except partitioner.InfeasibleError as error:
        return {"why": error.message}
    return {"seconds": plan.predicted.step_seconds, "largest": _largest_batch(plan, row)}


def _largest_batch(plan: Any, row: dict[str, str]) -> int:
    """The largest batch that fits on one of the GPUs alone, as memory grows in proportion to it."""
    from cost_models.catalogue import link_named
    from cost_models.topology import Topology, TopologyDevice
    from partitioner.capture.lower.batching import BatchSizes
    from partitioner.hardware.topology import usable_bytes
    from partitioner.ir.devices import DeviceName
    from partitioner.planner.model.costs import cost_ops
    from partitioner.planner.simulate.unpipelined import simulate

    step, device, name = plan.traced.step, device_named(row["hardware"]), DeviceName.parse("GPU:0")
    room = usable_bytes(name, device)
    placed = TopologyDevice(name=name.canonical, device=device, memory_bytes=room)
    sizes, machines = BatchSizes(step), Topology.uniform([placed], link_named("pcie3"))

    def peak_bytes(rows: int) -> int:
        graph = sizes(rows)
        compiled = frozenset(op.name for op in graph.ops) if row["xla"] == "1" else frozenset[str]()
        simulated = simulate(cost_ops(graph, machines, compiled=compiled), {op.name: 0 for op in graph.ops})
        return simulated.peak[name.canonical].total_bytes

    batch = int(row["batch"])
    less, more = peak_bytes(max(batch // 2, 1)), peak_bytes(batch)
    per_row = (more - less) / max(batch - batch // 2, 1)
    return int(batch + (room - more) / max(per_row, 1))


def _predicted_alone(path: Path, number: int, row: dict[str, str]) -> dict[str, Any]:
    """`predicted` in a process of its own, whose memory ends with it."""
    command = [sys.executable, "-m", __spec__.name, str(path.resolve()), "--row", f"{number}"]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    chosen = {"TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": str(int(is_persistent(row)))}
    environment = os.environ | quiet | chosen
    ended = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, env=environment, check=False)
    if ended.returncode:
        return {"why": (ended.stderr.strip().splitlines() or ["killed"])[-1]}
    return json.loads(ended.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan every row, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="ROWS.csv")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows of models or hardware whose names have it")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rows = rows_of(options.rows)
    if options.row is not None:
        print(json.dumps(predicted(rows[options.row])))
        return
    console, errors = Console(width=160), []
    table = Table()
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("model", "hardware", "precision", "fits") else "right")
    for number, row in enumerate(rows):
        if options.only not in f"{row['model']} {row['hardware']}":
            continue
        found, expected = _predicted_alone(options.rows, number, row), published_seconds(row)
        error = found["seconds"] / expected - 1 if "seconds" in found else None
        errors += [] if error is None else [abs(error)]
        table.add_row(
            *(row[column] for column in _FIELDS),
            f"{1e3 * expected:.1f}",
            "" if error is None else f"{1e3 * found['seconds']:.1f}",
            "" if error is None else f"{error:+.0%}",
            found.get("why", "yes"),
            str(found.get("largest", "")),
        )
    if errors:
        table.title = f"mean error {statistics.mean(errors):.0%}, largest {max(errors):.0%}, of {len(errors)} rows"
    console.print(table)


if __name__ == "__main__":
    main()
