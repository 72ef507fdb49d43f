"""A mechanism tried out: planned, placed, linted, trained, verified, and timed."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from partitioner import api
from partitioner.doctor.finding import Finding, Status
from partitioner.doctor.mechanisms import MECHANISMS, ROWS, Batch, Mechanism
from partitioner.emit.cluster.runtime import forget_peaks, is_divided, peak_bytes
from partitioner.emit.graph.graph_def import rename_devices
from partitioner.ir.step import RESULTS
from partitioner.plan_view import Plan
from partitioner.spelling import command
from partitioner.verification.gpu_lint import faults

PLANNING_SECONDS = 10.0
REPORT = f"please report it with the output of {command('partition doctor', json=True)}"
SAVED = "a saved model in another process"
_TRAINED_STEPS, _TIMED_STEPS = 3, 7
_LOADING_SECONDS = 300.0
_LOADING = """
import sys
import numpy as np
import partitioner

folder = sys.argv[1]
placed = partitioner.load(folder)
batch = np.load(folder + "/batch.npz")
np.save(folder + "/outputs.npy", placed.predict_on_batch(batch["x"]))
placed.train_on_batch(batch["x"], batch["y"])
"""


def tried(mechanism: Mechanism, actual: Mapping[str, str]) -> Finding:
    """The finding; `actual` maps each device to the one that runs in its place."""
    if len(actual) < mechanism.least_devices:
        return Finding(
            check=mechanism.name,
            status=Status.SKIPPED,
            text=f"needs {mechanism.least_devices} devices, {len(actual)} given",
        )
    model, plan, placed = _placed(mechanism, list(actual))
    stand_in = any(name != runs for name, runs in actual.items())
    if wrong := _lint(placed, plan):
        return Finding(check=mechanism.name, status=Status.FAILED, text=wrong[0], advice=REPORT)
    verification = api.verify(model, placed, num_steps=2)
    batch = mechanism.data()
    losses = [float(_loss(placed, batch)) for _ in range(_TRAINED_STEPS)]
    measured = statistics.median(_seconds(lambda: _loss(placed, batch)) for _ in range(_TIMED_STEPS))
    finding = Finding(
        check=mechanism.name,
        status=Status.HOLDS,
        text=f"{verification.num_ops_checked:,} ops in place, outputs apart by {verification.outputs_max_rel_diff:.0e}",
        predicted_seconds=0.0 if stand_in else plan.predicted.step_seconds,
        measured_seconds=0.0 if stand_in else measured,
        predicted_bytes=max(use.peak_bytes for use in plan.memory),
        measured_bytes=_peak_bytes(actual.values()),
    )
    if verification.misplaced_ops:
        text = f"{len(verification.misplaced_ops)} ops elsewhere: {verification.misplaced_ops[0]}"
        return replace(finding, status=Status.FAILED, text=text, advice=REPORT)
    if not verification.passed:
        differing = verification.unexplained or verification.differing_copies
        text = f"differs from the unplaced model: {', '.join(differing[:2])}"
        return replace(finding, status=Status.FAILED, text=text, advice=REPORT)
    if not all(map(math.isfinite, losses)):
        return replace(finding, status=Status.FAILED, text=f"losses are {losses}", advice=REPORT)
    return finding


def _placed(mechanism: Mechanism, devices: Sequence[str]) -> tuple[keras.Model, Plan, Any]:
    keras.utils.set_random_seed(0)
    model = mechanism.build()
    plan = api.plan(model, time_limit=PLANNING_SECONDS, **mechanism.planned_with(model, devices))
    return model, plan, api.place(model, plan)


def _lint(placed: Any, plan: Plan) -> list[str]:
    """What would not run on GPUs of every graph that is emitted, by the names of the plan."""
    planned = {runs: name for name, runs in placed.program.devices.items()}
    wrong: list[str] = []
    for kind, specs in placed.program.signatures():
        graph_def = placed.program.function(kind, specs, results=RESULTS[kind]).graph.as_graph_def()
        rename_devices(graph_def, planned)
        wrong += map(str, faults(graph_def, plan.used_devices))
    return wrong


def _loss(placed: Any, batch: Batch) -> float:
    value = placed.train_on_batch(*batch)
    return value[0] if isinstance(value, list) else value


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _peak_bytes(devices: Collection[str]) -> int:
    """Largest peak of a GPU so far, which is then forgotten; TensorFlow counts no memory of CPUs."""
    largest = max((peak_bytes(name) or 0 for name in devices), default=0)
    forget_peaks(devices)
    return largest


def saved_and_loaded(actual: Mapping[str, str]) -> Finding:
    """Whether a SavedModel gives the same outputs in another process, and trains there."""
    if any(name != runs for name, runs in actual.items()):
        return Finding(check=SAVED, status=Status.SKIPPED, text="it loads where its devices are, and some are not here")
    if is_divided():
        return Finding(check=SAVED, status=Status.SKIPPED, text="parts of a GPU are in this process only")
    mechanism = next(mechanism for mechanism in MECHANISMS if mechanism.name.startswith("gpipe"))
    _, _, placed = _placed(mechanism, list(actual))
    x, y = mechanism.data()
    with tempfile.TemporaryDirectory() as folder:
        api.write_saved_model(placed, folder)
        np.savez(Path(folder) / "batch.npz", x=x, y=y)
        done = subprocess.run(
            [sys.executable, "-c", _LOADING, folder],
            capture_output=True, text=True, timeout=_LOADING_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return Finding(check=SAVED, status=Status.FAILED, text=last, advice=REPORT)
        loaded = np.load(Path(folder) / "outputs.npy")
    here = placed.predict_on_batch(x)
    apart = float(np.linalg.norm(loaded - here) / np.linalg.norm(here))
    if apart > 1e-4:
        return Finding(check=SAVED, status=Status.FAILED, text=f"outputs differ by {apart:.0e}", advice=REPORT)
    return Finding(
        check=SAVED, status=Status.HOLDS, text=f"{ROWS} rows: outputs apart by {apart:.0e}, and it trains on"
    )
