"""Peak memory of pipelines on each device: predicted by the plan, and measured.

`python -m tests.benchmarks.pipeline_memory` trains models over logical CPU devices, as placed by a plan, under GPipe
and 1F1B, with and without recomputation, and reads from TensorFlow's profiler which buffers each device held in a step
(`device_memory.py` says how); the median of some steps. Predicted are `plan.predicted.peak_bytes`. One process per
model and number of devices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.asking import asked
from tests.benchmarks.allocations import ENVIRONMENT
from tests.benchmarks.logical_devices import start

SCHEDULES = ("gpipe", "1f1b")
RECOMPUTE = ("none", "all")
MODELS = ("dense", "cnn", "decoder")
_STEPS = 7
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak of one device in one way to train.

    Attributes:
        model: One of `MODELS`.
        schedule: `gpipe` or `1f1b`.
        recompute: `none` or `all`.
        device: Canonical name.
        predicted_bytes: By the plan.
        measured_bytes: The median of some steps.
    """

    model: str
    schedule: str
    recompute: str
    device: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_bytes / self.measured_bytes


def measure(model: str, num_devices: int, *, num_microbatches: int = 8) -> list[Peak]:
    """Train a model in every way, in a process of its own.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-m", "tests.benchmarks.pipeline_memory", "--contender", model]
    command += ["--devices", str(num_devices), "--microbatches", str(num_microbatches)]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Peak(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def _dense() -> tuple[Any, Any, Any]:
    """Eight wide layers and many rows: activations outweigh weights."""
    import keras
    import numpy as np
    from keras import layers

    inputs = keras.Input((256,))
    x = inputs
    for index in range(8):
        x = layers.Dense(256, activation="gelu", name=f"dense_{index}")(x)
    generator = np.random.default_rng(0)
    rows = 2048
    model = keras.Model(inputs, layers.Dense(4, name="scores")(x))
    return model, generator.standard_normal((rows, 256), np.float32), generator.integers(0, 4, rows)


def _cnn() -> tuple[Any, Any, Any]:
    import keras
    import numpy as np
    from keras import layers

    inputs = keras.Input((16, 16, 8))
    x = inputs
    for index in range(9):
        x = layers.Conv2D(8, 3, padding="same", activation="relu", name=f"conv_{index}")(x)
    generator = np.random.default_rng(0)
    model = keras.Model(inputs, layers.Dense(4, name="scores")(layers.GlobalAveragePooling2D()(x)))
    return model, generator.standard_normal((128, 16, 16, 8), np.float32), generator.integers(0, 4, 128)


def _decoder() -> tuple[Any, Any, Any]:
    """Predicts the next token, as GPT does."""
    import keras
    import numpy as np
    from keras import layers

    length, width, tokens, rows = 32, 64, 100, 64
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(tokens, width, name="embed")(inputs)
    for index in range(4):
        y = layers.LayerNormalization(name=f"norm_{index}")(x)
        y = layers.MultiHeadAttention(4, width // 4, name=f"attend_{index}")(y, y, use_causal_mask=True)
        x = layers.Add(name=f"join_{index}")([x, y])
        y = layers.Dense(4 * width, activation="gelu", name=f"widen_{index}")(layers.LayerNormalization()(x))
        x = layers.Add(name=f"add_{index}")([x, layers.Dense(width, name=f"narrow_{index}")(y)])
    scores = layers.Dense(tokens, name="scores")(layers.LayerNormalization(name="last_norm")(x))
    generator = np.random.default_rng(0)
    text = generator.integers(0, tokens, (rows, length + 1))
    return keras.Model(inputs, scores), text[:, :-1], text[:, 1:]


_BUILD: dict[str, Callable[[], tuple[Any, Any, Any]]] = {"dense": _dense, "cnn": _cnn, "decoder": _decoder}


def _contend(name: str, num_devices: int, num_microbatches: int) -> Iterator[Peak]:
    import keras

    import partitioner
    from tests.benchmarks.allocations import profile
    from tests.benchmarks.device_memory import measured_peak_bytes

    devices = start(num_devices, first=1)
    for schedule in SCHEDULES:
        for recompute in RECOMPUTE:
            model, x, y = _BUILD[name]()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, jit_compile=False)
            plan = partitioner.plan(
                model,
                **asked(
                    devices=devices,
                    batch_size=len(x),
                    strategy="layer-split",
                    microbatches=num_microbatches,
                    schedule=schedule,
                    recompute=recompute,
                    time_limit=10,
                ),
            )
            placed: Any = partitioner.place(model, plan)
            run = partial(placed.train_on_batch, x, y)
            run()  # traces, and makes what stays
            found = [measured_peak_bytes(placed, profile(run)) for _ in range(_STEPS)]
            for device in plan.used_devices:
                yield Peak(
                    model=name,
                    schedule=schedule,
                    recompute=recompute,
                    device=device,
                    predicted_bytes=plan.predicted.peak_bytes[device],
                    measured_bytes=round(median(peaks[placed.program.devices[device]] for peaks in found)),
                )


def main() -> None:
    """Measure every model over every number of devices and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=MODELS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    if options.contender:
        peaks = _contend(options.contender, options.devices[0], options.microbatches)
        print(json.dumps([asdict(peak) for peak in peaks]))
        return
    table = Table(title=f"peak memory per device, {options.microbatches} microbatches, measured by allocation")
    for column in ("model", "device", "schedule", "recompute", "predicted MB", "measured MB", "ratio"):
        table.add_column(column, justify="right")
    ratios: list[float] = []
    for model in options.models:
        for num_devices in options.devices:
            found = measure(model, num_devices, num_microbatches=options.microbatches)
            for peak in sorted(found, key=lambda peak: peak.device):
                table.add_row(
                    model,
                    f"{peak.device.rpartition('device:')[2]} of {num_devices}",
                    peak.schedule,
                    peak.recompute,
                    f"{peak.predicted_bytes / 1e6:.2f}",
                    f"{peak.measured_bytes / 1e6:.2f}",
                    f"{peak.ratio:.3f}",
                )
                ratios.append(peak.ratio)
            table.add_section()
    Console().print(table)
    within = sum(0.9 <= ratio <= 1.1 for ratio in ratios)
    print(f"{within} of {len(ratios)} within 10 %; all from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
