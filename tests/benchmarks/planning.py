"""Seconds and memory of planning Transformers as they are traced, of thousands to a hundred thousand ops.

    python -m tests.benchmarks.planning [--blocks 2,12,96] [--devices GPU:0-7] [--hardware h100-sxm] [--time-limit 60]

Each model is planned in a process of its own, which need not have the devices. The time limit is for the search;
seconds are from the built Keras model to the plan, tracing included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parents[2]
_LENGTH, _WIDTH, _WORDS, _ROWS = 32, 64, 1000, 32


def _model(blocks: int) -> Any:
    """A decoder: attention and two dense layers per block, each with a residual and a normalisation."""
    import keras
    from keras import layers

    inputs = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_WORDS, _WIDTH)(inputs)
    for _ in range(blocks):
        y = layers.MultiHeadAttention(4, _WIDTH // 4)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        y = layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    model = keras.Model(inputs, layers.Dense(_WORDS)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _run(blocks: int, devices: str, hardware: str, time_limit: float) -> dict[str, Any]:
    import partitioner

    model = _model(blocks)
    start = time.perf_counter()
    plan = partitioner.plan(model, devices=devices, hardware=hardware, batch_size=_ROWS, time_limit=time_limit)
    return {
        "ops": len(plan.placement),
        "seconds": time.perf_counter() - start,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "strategy": plan.strategy,
        "step": plan.predicted.step_seconds,
        "single": min(one.step_seconds for one in plan.baselines if one.name.startswith("single")),
        "status": plan.solver.status,
        "gap": plan.solver.gap,
    }


def main() -> None:
    """Plan every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="2,12,96")
    parser.add_argument("--devices", default="GPU:0-7")
    parser.add_argument("--hardware", default="h100-sxm")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(_run(options.run, options.devices, options.hardware, options.time_limit)))
        return
    table = Table(title=f"planning for {options.devices} ({options.hardware}), --time-limit {options.time_limit:g}")
    for column in ("blocks", "ops", "seconds", "GiB", "chosen", "step ms", "one device ms", "status", "gap"):
        table.add_column(column, justify="left" if column in ("chosen", "status") else "right")
    for blocks in options.blocks.split(","):
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--run", blocks]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        table.add_row(
            blocks,
            f"{found['ops']:,}",
            f"{found['seconds']:.0f}",
            f"{found['gib']:.1f}",
            found["strategy"],
            f"{1e3 * found['step']:.1f}",
            f"{1e3 * found['single']:.1f}",
            found["status"],
            f"{found['gap']:.0%}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
