"""Fit the constants of GPUs to published steps: `python -m tests.benchmarks.calibrate ROWS.csv CACHE`.

Each row is traced once, in a process of its own, and its op graph kept in the folder CACHE. Steps are then predicted
as the planner does for one device (and a sum of gradients for several), and the constants of
`cost_models/gpu_constants.py` that have bounds here are chosen by least squares on the logarithms of predicted over
published step. Then each model in turn is left out, the constants are fitted without it, and it is predicted.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import numpy as np

from cost_models.calls import CallCost
from cost_models.catalogue import device_named, link_named
from cost_models.flops import op_cost
from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_seconds import queued_seconds
from cost_models.hardware import Device
from cost_models.scratch import Kernels
from cost_models.specs import OpCost
from cost_models.topology import Topology, TopologyDevice
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import OpGraph, VariableKind
from partitioner.ir.op_seconds import seconds_of_ops
from partitioner.planner.model.fusion import fuse
from partitioner.planner.simulate.exchange_seconds import sum_times
from tests.benchmarks.published import LINKS, is_persistent, published_seconds, rows_of

BOUNDS: Mapping[str, tuple[float, float]] = {
    "tensor_core_share": (0.3, 0.95),
    "cuda_core_share": (0.4, 0.98),
    "bandwidth_share": (0.5, 0.95),
    "depthwise_share": (0.005, 0.5),
    "start_depth": (1.0, 256.0),
    "sum_share": (0.1, 1.0),
}
"""Constants that are fitted, and what physics allows."""
_BUCKET_BYTES = 32 << 20
_ROUNDS, _STEP, _DAMPING, _FAR = 6, 0.02, 0.05, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published row, ready to be predicted.

    Attributes:
        fields: Its columns.
        graph: The step of one GPU.
        costs: Of its ops.
        fusion: Its kernels, where it was compiled.
        device: The GPU.
    """

    fields: dict[str, str]
    graph: OpGraph
    costs: tuple[OpCost, ...]
    fusion: Fusion | None
    device: Device

    @property
    def title(self) -> str:
        """What tells it from others."""
        return " ".join(self.fields[key] for key in ("model", "hardware", "gpus", "precision", "batch"))

    def seconds(self, constants: GpuConstants) -> float:
        """Its predicted step."""
        kernels = Kernels(persistent_normalisation=is_persistent(self.fields))
        own = seconds_of_ops(self.graph, self.costs, self.device, self.fusion, constants, kernels)
        host = 0.0 if self.fusion else constants.dispatch_seconds
        count = int(self.fields["gpus"])
        step = queued_seconds(filter(None, own), host)
        return step if count == 1 else step + CallCost().seconds + self._sum_seconds(count, constants)

    def _sum_seconds(self, count: int, constants: GpuConstants) -> float:
        placed = [
            TopologyDevice(name=f"/device:GPU:{index}", device=self.device, memory_bytes=1) for index in range(count)
        ]
        link = link_named(LINKS[self.fields["hardware"]])
        own = [v for v in self.graph.variables if v.kind is VariableKind.PARAMETER]
        size = sum(variable.size_bytes for variable in own)
        topology = Topology.uniform(placed, link)
        return sum_times(
            size,
            0,
            num_tensors=len(own),
            topology=topology,
            peers=range(count),
            num_messages=max(size // _BUCKET_BYTES, 1),
            constants=constants,
        ).seconds

    def error(self, constants: GpuConstants) -> float:
        """Predicted over published step, less 1."""
        return self.seconds(constants) / published_seconds(self.fields) - 1


def traced_rows(path: Path, cache: Path) -> list[Row]:
    """The rows of a file; what the cache lacks is traced first."""
    cache.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, fields in enumerate(rows_of(path)):
        kept = cache / f"{_key(fields)}.pickle"
        if not kept.exists():
            command = [sys.executable, "-m", __spec__.name, str(path), str(cache), "--trace", str(number)]
            quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
            subprocess.run(command, check=True, env=quiet, capture_output=True)
            print(f"traced {kept.stem}", file=sys.stderr)
        graph: OpGraph = pickle.loads(kept.read_bytes())  # written by ourselves
        costs = graph.of_specs(op_cost)
        fusion = fuse(graph, costs) if fields["xla"] == "1" else None
        rows.append(
            Row(fields=fields, graph=graph, costs=costs, fusion=fusion, device=device_named(fields["hardware"]))
        )
    return rows


def _key(fields: Mapping[str, str]) -> str:
    precision = "mixed" if fields["precision"].startswith("mixed") else "float32"
    parts = (fields["model"], precision, fields["batch"], fields["input"].split()[0], fields["optimizer"])
    return "-".join(part.replace(" ", "_") for part in parts)


def _trace(fields: Mapping[str, str], kept: Path) -> None:
    from partitioner.binding.traced_step import trace
    from partitioner.capture.lower.batching import BatchSizes
    from tests.benchmarks.published_models import compiled

    rows = int(fields["batch"])
    traced = trace(
        compiled(fields["model"], fields["input"], fields["optimizer"], fields["precision"]),
        training=fields["mode"] == "train",
        loss=None,
        optimizer=None,
        batch_size=rows,
        input_shapes={},
        example_inputs=None,
        example_targets=None,
    )
    kept.write_bytes(pickle.dumps(BatchSizes(traced.step)(rows)))


def fitted(rows: Sequence[Row], start: GpuConstants = GPU) -> GpuConstants:
    """The constants that predict the rows best: damped least squares on the logarithms of constants and errors.

    Rows that are far off count less (weights of a soft L1 loss), since their publishers may have done something else.
    """
    names = list(BOUNDS)
    low, high = np.log(list(BOUNDS.values())).T

    def constants(values: np.ndarray) -> GpuConstants:
        return replace(start, **dict(zip(names, map(float, np.exp(values)), strict=True)))

    def residuals(values: np.ndarray) -> np.ndarray:
        return np.array([log(1 + row.error(constants(values))) for row in rows])

    at = np.clip(np.log([getattr(start, name) for name in names]), low, high)
    for _ in range(_ROUNDS):
        now = residuals(at)
        slopes = np.array([(residuals(at + step) - now) / _STEP for step in _STEP * np.eye(len(names))]).T
        weights = (1 + (now / _FAR) ** 2) ** -0.25
        damped = np.vstack([weights[:, None] * slopes, _DAMPING * np.eye(len(names))])
        wanted = np.concatenate([-weights * now, np.zeros(len(names))])
        at = np.clip(at + np.linalg.lstsq(damped, wanted, rcond=None)[0], low, high)
    return constants(at)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, and print constants and errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="ROWS.csv")
    parser.add_argument("cache", type=Path, metavar="CACHE")
    parser.add_argument("--no-left-out", action="store_true", help="do not leave models out")
    parser.add_argument("--keep", action="store_true", help="do not fit: the errors of the constants as they are")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose source, model or hardware has it")
    parser.add_argument("--trace", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.trace is not None:
        fields = rows_of(options.rows)[options.trace]
        _trace(fields, options.cache / f"{_key(fields)}.pickle")
        return
    rows = [row for row in traced_rows(options.rows, options.cache) if options.only in row.title]
    best = GPU if options.keep else fitted(rows)
    print(best)
    left_out: dict[str, float] = {}
    if not (options.keep or options.no_left_out):
        for model in dict.fromkeys(row.fields["model"] for row in rows):
            others = fitted([row for row in rows if row.fields["model"] != model], best)
            left_out |= {row.title: row.error(others) for row in rows if row.fields["model"] == model}
    for row in rows:
        seconds = published_seconds(row.fields)
        without = f"{left_out[row.title]:+7.0%}" if row.title in left_out else ""
        print(f"{row.title:50} {1e3 * seconds:8.1f} {1e3 * row.seconds(best):8.1f} {row.error(best):+7.0%} {without}")
    for name, errors in (("all", [row.error(best) for row in rows]), ("left out", list(left_out.values()))):
        if errors:
            sizes = [abs(error) for error in errors]
            print(f"{name}: mean {statistics.mean(sizes):.1%}, largest {max(sizes):.1%}, {len(sizes)} rows")


if __name__ == "__main__":
    main()
