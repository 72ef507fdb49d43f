"""Peak memory of each device, predicted by the plan and measured, on the models of the fidelity benchmark.

`python -m tests.benchmarks.memory_fidelity` plans every model and runs the plan under TensorFlow's profiler, which
tells every buffer that was given out and taken back: training and inference, as one graph on one device or split over
two, and in 8 microbatches on two. Devices are logical CPU devices with one intra-op thread; as many ops run at a time
as there are devices. One process per model and way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.asking import asked
from tests.benchmarks.allocations import ENVIRONMENT
from tests.benchmarks.fidelity_models import MODELS
from tests.benchmarks.logical_devices import start

WAYS = ("train", "infer", "train in one on 2", "infer in one on 2", "train on 2", "infer on 2")
_STEPS = 3
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak of one device while a model runs in one way: by the plan, and the largest of some measured steps."""

    model: str
    way: str
    device: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """How far the prediction is over what was measured; negative where it is under."""
        return self.predicted_bytes / self.measured_bytes - 1


def measure(model: str, way: str) -> list[Peak]:
    """Run a model in a process of its own.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-m", "tests.benchmarks.memory_fidelity", "--run", model, way]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Peak(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def prepare(model: str, way: str) -> tuple[Any, Any, Callable[[], Any], Any]:
    """Plan and place a model in this process: the plan, the placed model, its step, and the step's kind."""
    import tensorflow as tf

    import partitioner
    from partitioner.ir.step import StepKind

    devices = start(2 if way.endswith("on 2") else 1)
    keras_model, (x, y) = MODELS[model]()
    training = way.startswith("train")
    staged = {"microbatches": min(8, len(x)), "schedule": "1f1b"}
    fixed: dict[str, Any] = {"microbatches": 1} if len(devices) == 1 or "in one" in way else staged
    plan = partitioner.plan(
        keras_model,
        **asked(
            devices=devices,
            batch_size=len(x),
            training=training,
            strategy="layer-split" if len(devices) > 1 else "single",
            time_limit=15,
            **fixed,
        ),
    )
    placed: Any = partitioner.place(keras_model, plan)
    kind = StepKind.TRAIN if training else StepKind.PREDICT
    given = (tf.convert_to_tensor(x), tf.convert_to_tensor(y) if training else None, None)
    arguments = placed.program.standardize(kind, given)
    specs = tf.nest.map_structure(_open_spec, arguments)
    function = placed.program.function(kind, specs)
    return plan, placed, lambda: function(*arguments), kind


def _open_spec(value: Any) -> Any:
    import tensorflow as tf

    return None if value is None else tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _run(model: str, way: str) -> list[Peak]:
    from tests.benchmarks.allocations import profile
    from tests.benchmarks.device_memory import measured_peak_bytes

    plan, placed, step, kind = prepare(model, way)
    step()  # makes what stays
    found = [measured_peak_bytes(placed, profile(step), kind) for _ in range(_STEPS)]
    return [
        Peak(
            model=model,
            way=way,
            device=device,
            predicted_bytes=plan.predicted.peak_bytes[device],
            measured_bytes=max(peaks[placed.program.devices[device]] for peaks in found),
        )
        for device in plan.used_devices
    ]


def table(peaks: Sequence[Peak]) -> Table:
    """Every peak with its error, and the mean and the extremes of the errors."""
    found = Table(title="peak memory, predicted against measured by allocation")
    for column in ("model", "", "device", "predicted MB", "measured MB", "error"):
        found.add_column(column, justify="right" if column.endswith(("MB", "error")) else "left")
    for peak in peaks:
        sizes = (f"{size / 1e6:.2f}" for size in (peak.predicted_bytes, peak.measured_bytes))
        found.add_row(peak.model, peak.way, peak.device.rpartition("device:")[2], *sizes, f"{peak.error:+.1%}")
    errors = [peak.error for peak in peaks]
    found.add_section()
    found.add_row("mean of sizes of errors", "", "", "", "", f"{statistics.mean(map(abs, errors)):.1%}")
    found.add_row("from", "", "", "", "", f"{min(errors):+.1%}")
    found.add_row("to", "", "", "", "", f"{max(errors):+.1%}")
    return found


def main() -> None:
    """Measure every model in every way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    if options.run:
        print(json.dumps([asdict(peak) for peak in _run(*options.run)]))
        return
    peaks: list[Peak] = []
    for model in options.models:
        for way in options.ways:
            peaks += measure(model, way)
            print(*(f"{model}, {way}: {peak.error:+.1%}" for peak in peaks[-1:]), file=sys.stderr, flush=True)
    Console(width=110).print(table(peaks))


if __name__ == "__main__":
    main()
