"""What XLA compiles of placed steps on logical CPU devices, and whether they train to the same numbers.

`python -m tests.benchmarks.xla_stages [--only EXPRESSION] [--results FILE]` runs each row in a process of its own. For
each model and plan: programs that are compiled whole, in part, and not at all, with the reasons; seconds and number of
XLA's compilations over five steps and two partial batches; the largest relative difference from the unplaced model,
beside that of its control. XLA writes a file for each program that it compiles, which are counted.

With `--gpu` the devices are four parts of one GPU, and with `--plain` nothing is compiled: what GPUs demand of placed
steps, apart from speed, shows on one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from cost_models.formulas_movement import FREE_OP_TYPES

BATCH, PARTIAL = 32, 20
_STAGE = re.compile(r"partition_[IFBWU]\d+_\d+$")
# Ops that move or hold what calls take and give; int32 that cross as int64.
_FREE = frozenset({"Cast", "Placeholder", *FREE_OP_TYPES})
TIMEOUT = 900.0
PLANS = {
    "1 stage": {"strategy": "single"},
    "1 stage, GPipe": {"strategy": "single", "microbatches": 4, "schedule": "gpipe"},
    "1 stage, 1F1B": {"strategy": "single", "microbatches": 4, "schedule": "1f1b"},
    "1 stage, mirrored": {"strategy": "mirrored"},
    "2 stages": {"strategy": "layer-split", "microbatches": 1},
    "2 stages, GPipe": {"strategy": "layer-split", "microbatches": 4, "schedule": "gpipe"},
    "2 stages, 1F1B": {"strategy": "layer-split", "microbatches": 4, "schedule": "1f1b"},
    "2 stages, ZB-H1": {"strategy": "layer-split", "microbatches": 4, "schedule": "zb-h1"},
    "2 stages, mirrored": {"strategy": "mixed", "replicas": 2},
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a model under a plan."""

    model: str
    plan: str
    error: str = ""
    whole: int = 0
    partly: int = 0
    plain: int = 0
    updates_compiled: bool = False
    reasons: tuple[str, ...] = ()
    compilations: int = 0
    most_of_one: int = 0
    compile_seconds: float = 0.0
    difference: float = 0.0
    control: float = 0.0
    unexplained: tuple[str, ...] = ()
    passed: bool = False


def cnn() -> tuple[Any, Any]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(8, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return model, "float"


def transformer() -> tuple[Any, Any]:
    import keras

    layers = keras.layers
    tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(tokens) + layers.Embedding(12, 16)(keras.ops.arange(12))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, "gelu")(x)))
    return keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))), "tokens"


def mixed_mlp() -> tuple[Any, Any]:
    import keras

    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    layers = [keras.layers.Dense(32, "relu", dtype=policy) for _ in range(3)]
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *layers, keras.layers.Dense(10)])
    return model, "float"


def lstm() -> tuple[Any, Any]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            layers.Embedding(50, 16),
            layers.LSTM(16, return_sequences=True),
            layers.LSTM(16),
            layers.Dense(32, "relu"),
            layers.Dense(10),
        ]
    )
    return model, "tokens"


def host_only() -> tuple[Any, Any]:
    """A hash of text in the middle of a step, which only hosts have kernels for."""
    import keras
    import tensorflow as tf

    class Hashed(keras.layers.Layer):
        """Buckets of numbers by their text."""

        def call(self, x: Any) -> Any:
            text = tf.strings.as_string(tf.cast(x, tf.int32))
            return tf.cast(tf.strings.to_hash_bucket_fast(text, 7), tf.float32)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    flat = layers.Flatten()(inputs)
    x = layers.Concatenate()([layers.Dense(32, "relu")(flat), Hashed()(flat)])
    return keras.Model(inputs, layers.Dense(10)(layers.Dense(32, "relu")(x))), "float"


MODELS = {
    "CNN with batch norm": cnn,
    "Transformer": transformer,
    "mixed_float16 MLP": mixed_mlp,
    "LSTM": lstm,
    "host-only layer": host_only,
}


def _start(on_gpu: bool) -> list[str]:
    """Set TensorFlow up; four devices."""
    import partitioner
    from partitioner.emit.cluster.runtime import divide_gpu

    if on_gpu:
        divide_gpu(4)
        return [f"GPU:{index}" for index in range(4)]
    names = [f"CPU:{index}" for index in range(5)]
    partitioner.set_up_devices(names)
    return names[1:]


def run(model_name: str, plan_name: str, dump: Path, *, on_gpu: bool, compiled: bool) -> Row:
    """Plan, place, train and verify a model in this process."""
    import keras
    import numpy as np

    import partitioner

    devices = _start(on_gpu)
    keras.utils.set_random_seed(0)
    model, kind = MODELS[model_name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    arguments: dict[str, Any] = dict(PLANS[plan_name])
    parallelism = partitioner.Parallelism(schedule=arguments.pop("schedule", "auto"))
    count = {"single": 1, "mixed": 4}.get(arguments["strategy"], 2)
    plan = partitioner.plan(
        model,
        devices[:count],
        batch_size=BATCH,
        step=partitioner.Step(jit_compile=compiled),
        parallelism=parallelism,
        time_limit=10.0,
        **arguments,
    )
    placed = partitioner.place(model, plan)
    rng = np.random.default_rng(0)
    shape = (2 * BATCH + PARTIAL, 8, 8, 1) if kind == "float" else (2 * BATCH + PARTIAL, 12)
    x = rng.normal(size=shape).astype("float32") if kind == "float" else rng.integers(0, 50, shape).astype("int32")
    y = rng.integers(0, 10, len(x))
    before, began = _compiled(dump), time.monotonic()
    placed.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    first = time.monotonic() - began
    began = time.monotonic()
    placed.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    compile_seconds = first - (time.monotonic() - began)
    counts = _compiled(dump) - before
    programs = _programs(placed, plan)
    verification = partitioner.verify(model, placed)
    print(verification, file=sys.stderr)
    return Row(
        model=model_name,
        plan=plan_name,
        whole=sum(1 for _, calls, rest in programs if calls and not rest),
        partly=sum(1 for _, calls, rest in programs if calls and rest),
        plain=sum(1 for _, calls, rest in programs if not calls and rest),
        updates_compiled=all(calls and not rest for name, calls, rest in programs if "partition_U" in name),
        reasons=tuple(dict.fromkeys(op for _, _, rest in programs for op in rest)),
        compilations=sum(counts.values()),
        most_of_one=max(counts.values(), default=0),
        compile_seconds=compile_seconds,
        difference=max(verification.outputs_max_rel_diff, verification.gradients_max_rel_diff),
        control=verification.control_max_rel_diff,
        unexplained=(*verification.misplaced_ops, *verification.differing_copies, *verification.unexplained)[:4],
        passed=verification.passed,
    )


def _programs(placed: Any, plan: Any) -> list[tuple[str, int, Counter[str]]]:
    """For each program of a training step: its name, how many compiled calls it has, and the types of its other ops.

    In one piece, what a device runs of the whole step is a program.
    """
    kind, specs = placed.program.signatures()[0]
    graph = placed.program.function(kind, specs).graph.as_graph_def()
    bodies = {f.signature.name: f.node_def for f in graph.library.function if _STAGE.match(f.signature.name)}
    if not bodies:
        devices = list(placed.program.devices.values())
        bodies = {device: [node for node in graph.node if node.device == device] for device in devices}
    found = []
    for name, nodes in bodies.items():
        calls = sum(1 for node in nodes if node.attr["_XlaMustCompile"].b)
        rest = Counter(n.op for n in nodes if n.op not in _FREE and not n.attr["_XlaMustCompile"].b)
        found.append((name, calls, rest))
    return [one for one in found if one[1] or one[2]]


def _compiled(dump: Path) -> Counter[str]:
    """How often XLA compiled each function so far."""
    names = (path.name.split(".")[1] for path in dump.glob("*.before_optimizations.txt"))
    return Counter(name for name in names if "partition_compiled" in name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose model and plan match this expression")
    parser.add_argument("--results", type=Path, help="also write rows as lines of JSON")
    parser.add_argument("--gpu", action="store_true", help="on four parts of one GPU")
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--jobs", type=int, default=1, help="rows that run at once")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    how = {"on_gpu": options.gpu, "compiled": not options.plain}
    if options.row:
        row = run(options.row[0], options.row[1], Path(options.row[2]), **how)
        print("ROW " + msgspec.json.encode(asdict(row)).decode())
        return 0
    cases = [(model, plan) for model in MODELS for plan in PLANS if re.search(options.only, f"{model}: {plan}")]
    flags = [flag for flag, given in (("--gpu", options.gpu), ("--plain", options.plain)) if given]

    def one(case: tuple[str, str]) -> Row:
        row = _in_process(*case, flags)
        print(row, file=sys.stderr, flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(msgspec.json.encode(asdict(row)).decode() + "\n")
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(one, cases))
    Console(width=200).print(_table(rows))
    return 0 if all(row.passed for row in rows) else 1


def _in_process(model: str, plan: str, flags: Sequence[str]) -> Row:
    with tempfile.TemporaryDirectory() as dump:
        environment = {
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={dump} --xla_dump_hlo_as_text",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [sys.executable, "-m", "tests.benchmarks.xla_stages", "--row", model, plan, dump, *flags]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("ROW ")), None)
    if line is None:
        print(done.stderr, file=sys.stderr)
        return Row(model=model, plan=plan, error=(done.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return msgspec.json.decode(line[4:].encode(), type=Row)


def _table(rows: list[Row]) -> Table:
    table = Table("model", "plan", "whole", "partly", "plain", "updates", "compilations", "of one", "s", "difference",
                  "control", "", "why not")  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            row.plan,
            str(row.whole),
            str(row.partly),
            str(row.plain),
            "compiled" if row.updates_compiled else "-",
            str(row.compilations),
            str(row.most_of_one),
            f"{row.compile_seconds:.1f}",
            f"{row.difference:.1e}",
            f"{row.control:.1e}",
            row.error or ("pass" if row.passed else "; ".join(row.unexplained)),
            "; ".join(row.reasons),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
