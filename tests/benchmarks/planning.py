"""Seconds, memory and proof of planning: models of the sizes that people train, on machines that need not be here.

    python -m tests.benchmarks.planning [--models gpt2-small ...] [--machines "8 x H100" ...]

Each model is planned in a process of its own, from the function that builds it, without a time limit. Beside it, the
same model is only built and its step traced, as `tf.function` does, in a process that is timed from its start:
`allowed` is 1.5 times that and ten seconds more. Seconds of parts are those of `--verbose`; gaps are those of
plan.json: to any placement of the ops, and to the family that was searched.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parents[2]

MACHINES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "2 x A100, PCIe": (2, {"devices": "GPU:0-1", "hardware": "a100-80gb-pcie", "link": "pcie4"}),
    "4 x A100": (4, {"devices": "GPU:0-3", "hardware": "a100-80gb", "link": "nvlink3"}),
    "8 x H100": (8, {"topology": "dgx-h100"}),
    "2 hosts of 8": (16, {"topology": "2x dgx-h100"}),
    "8 hosts of 8": (64, {"topology": "8x dgx-h100"}),
}
"""Number of devices, and how `plan` is told of them."""


def _plan(name: str, machine: str) -> dict[str, Any]:
    import partitioner
    from partitioner.errors import PartitionError
    from tests.benchmarks.planning_models import MODELS

    num_devices, arguments = MACHINES[machine]
    model = MODELS[name]
    began = time.perf_counter()
    try:
        plan = partitioner.plan(model.build, batch_size=model.rows * num_devices // 8, cache=False, **arguments)
    except PartitionError as error:
        return {"refusal": str(error), "all": time.perf_counter() - began}
    step = plan.predicted.step_seconds
    single = [one.step_seconds for one in plan.baselines if one.name.startswith("single")]
    return {
        "ops": plan.model.num_ops,
        "parts": dict(plan.planning_seconds),
        "all": time.perf_counter() - began,
        "plan": f"{plan.strategy}, {plan.num_replicas} x {plan.num_stages}, {plan.num_microbatches} mb",
        "step": step,
        "one": min(single, default=0.0),
        "gap": plan.solver.gap,
        "family_gap": plan.solver.family_gap,
    }


def _trace(name: str) -> dict[str, Any]:
    """Build the model and trace its step with nothing of ours but variables without values, which take no time."""
    import tensorflow as tf

    from partitioner.deferred_variables import deferred_values, handles_only
    from tests.benchmarks.planning_models import MODELS

    with deferred_values(), handles_only():
        model: Any = MODELS[name].build()
        x = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), model.inputs)
        y = tf.TensorSpec(model.output.shape[:-1], "int32")
        model.optimizer.build(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, y, model(x, training=True))
                scaled = model.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, [variable.value for variable in model.trainable_variables])
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        graph = tf.function(step, autograph=False).get_concrete_function(x if len(x) > 1 else x[0], y).graph
    return {"ops": len(graph.get_operations())}


def _in_process(*arguments: str) -> dict[str, Any]:
    """What a process of its own says, the seconds from its start to its end, and the most memory that it had."""
    began = time.perf_counter()
    command = [sys.executable, "-m", __spec__.name, "--run", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"refusal": f"ended with {done.returncode}", "wall": time.perf_counter() - began, "gib": 0.0}
    return {**json.loads(done.stdout.splitlines()[-1]), "wall": time.perf_counter() - began}


def main() -> None:
    """Plan every model for every machine, and print the table."""
    from tests.benchmarks.planning_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        name, *machine = options.run
        found = _plan(name, *machine) if machine else _trace(name)
        print(json.dumps({**found, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
        return
    table = Table(title="planning: seconds, memory, step and gaps")
    for column in ("model", "machine", "ops", "trace s", "sizes s", "search s", "all s", "allowed s", "GiB", "plan",
                   "step ms", "one device ms", "gap", "family gap"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("model", "machine", "plan") else "right")
    for name in options.models:
        bare = _in_process(name)
        allowed = 1.5 * bare["wall"] + 10
        for machine in options.machines:
            found = _in_process(name, machine)
            row = _row(found, allowed)
            print(name, machine, *row, sep=" | ", file=sys.stderr, flush=True)
            table.add_row(name, machine, *row)
    Console(width=180).print(table)


def _row(found: Mapping[str, Any], allowed: float) -> list[str]:
    figures = [f"{found['wall']:.0f}", f"{allowed:.0f}", f"{found['gib']:.1f}"]
    if "refusal" in found:
        return ["", "", "", "", *figures, found["refusal"], "", "", "", ""]
    parts = [f"{found['parts'][part]:.0f}" for part in ("tracing", "sizes of tensors", "search")]
    gaps = ["" if found[gap] is None else f"{found[gap]:.1%}" for gap in ("gap", "family_gap")]
    step = [f"{1e3 * found['step']:.1f}", f"{1e3 * found['one']:.1f}"]
    return [f"{found['ops']:,}", *parts, *figures, found["plan"], *step, *gaps]


if __name__ == "__main__":
    main()
