"""The checks: devices, memory, kernels, profiling, and each mechanism placed, trained and verified."""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner import api
from partitioner.doctor.finding import Diagnosis, Finding, Status
from partitioner.doctor.mechanisms import MECHANISMS, ROWS, Batch, Mechanism
from partitioner.emit.cluster.runtime import present_gpus
from partitioner.emit.graph.graph_def import rename_devices
from partitioner.errors import PartitionError
from partitioner.gpu_kernels import knows_gpu_kernels
from partitioner.hardware.topology import build_topology
from partitioner.ir.devices import DeviceName, parse_devices
from partitioner.ir.step import RESULTS
from partitioner.ir.units import format_bytes
from partitioner.measure.profiler import profiled
from partitioner.measure.step_times import refuse_missing_device_plane, seconds_by_op
from partitioner.measure.store import settings
from partitioner.plan_view import Plan
from partitioner.spelling import argument, command, in_words
from partitioner.verification.gpu_lint import faults

PLANNING_SECONDS = 10.0
_TRAINED_STEPS, _TIMED_STEPS = 3, 7
_LOADING_SECONDS = 300.0
_MISSING_GPU = (
    "pip install 'tensorflow[and-cuda]' and a driver for it; nvidia-smi must list the GPU, and CUDA_VISIBLE_DEVICES "
    "must not hide it"
)
_SAVED = "a saved model in another process"
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

OnProgress = Callable[[str], object]


def examine(
    devices: str | Sequence[str],
    on_progress: OnProgress = lambda _: None,
    mechanisms: Sequence[Mechanism] | None = None,
) -> Diagnosis:
    """Run all checks. Logical CPU devices replace missing GPUs, which is a failure of its own.

    Args:
        devices: The devices to examine, as for `partitioner.plan`.
        on_progress: Called with the name of each check before it runs.
        mechanisms: The mechanisms to try; by default all, and a saved model.

    Raises:
        UsageError: A device is no device, or TensorFlow has already started with too few of them.
    """
    names = [name.canonical for name in parse_devices(devices)]
    actual = api.set_up_devices(names)
    findings = [*_presence(actual)]
    for check, run in (
        ("memory", lambda: _memory(names)),
        ("kernels of GPUs", lambda: _kernels()),
        ("profiling", lambda: _profiling(list(actual.values()))),
    ):
        on_progress(check)
        findings.append(_guarded(check, run))
    for mechanism in MECHANISMS if mechanisms is None else mechanisms:
        on_progress(mechanism.name)
        findings.append(_guarded(mechanism.name, lambda mechanism=mechanism: _mechanism(mechanism, actual)))
    if mechanisms is None:
        on_progress(_SAVED)
        findings.append(_guarded(_SAVED, lambda: _saved_model(actual)))
    return Diagnosis(devices=actual, versions=_versions(), findings=tuple(findings))


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "keras": keras.__version__, **settings()}


def _guarded(check: str, run: Callable[[], Finding]) -> Finding:
    """A finding whatever happens: an error is one, with its place."""
    try:
        return run()
    except PartitionError as error:
        message, notes, help = error.as_written
        text = in_words("; ".join([message, *notes[:2]]))
        return Finding(check=_SAVED, status=Status.FAILED, text=text, advice=in_words(help or ""))
    except Exception as error:  # whatever TensorFlow raises is what the check is for
        # TensorFlow counts several errors on a first line, and lists them below.
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "root error(s)" not in line]
        return Finding(
            check=_SAVED,
            status=Status.FAILED,
            text=": ".join([type(error).__name__, *lines[:1]]),
            advice=_REPORT,
        )


def _presence(actual: Mapping[str, str]) -> list[Finding]:
    absent = [DeviceName.parse(name).short for name, runs in actual.items() if name != runs]
    seen = ", ".join(
        f"{len(found)} {kind}" for kind in ("CPU", "GPU") if (found := tf.config.list_physical_devices(kind))
    )
    if not absent:
        return [Finding(check="devices", status=Status.HOLDS, text=f"all are here; TensorFlow sees {seen}")]
    return [
        Finding(
            check="devices",
            status=Status.FAILED,
            text=f"not here: {', '.join(absent)}; TensorFlow sees {seen}. CPU devices stand in below",
            advice=_MISSING_GPU,
        )
    ]


def _memory(names: Sequence[str]) -> Finding:
    gpus = present_gpus()
    topology, infos = build_topology([DeviceName.parse(name) for name in names], present=gpus)
    known, _ = build_topology(
        [DeviceName.parse(name) for name in names],
        present={name: replace(gpu, memory_bytes=0) for name, gpu in gpus.items()},
    )
    parts, off = [], []
    for placed, info, predicted in zip(topology.devices, infos, known.devices, strict=True):
        short = DeviceName.parse(placed.name).short
        parts.append(f"{short} {info.hardware} {format_bytes(placed.memory_bytes)}")
        if placed.name in gpus and not 0.97 <= placed.memory_bytes / predicted.memory_bytes <= 1.03:
            off.append(f"{short}: TensorFlow has {format_bytes(placed.memory_bytes)}, the catalogue says "
                       f"{format_bytes(predicted.memory_bytes)}")  # fmt: skip
    if off:
        return Finding(
            check="memory",
            status=Status.FAILED,
            text="; ".join(off),
            advice="does another process use the GPU (nvidia-smi)? Plans made here use TensorFlow's figure",
        )
    return Finding(check="memory", status=Status.HOLDS, text=", ".join(parts))


def _kernels() -> Finding:
    if knows_gpu_kernels():
        return Finding(check="kernels of GPUs", status=Status.HOLDS, text="this TensorFlow lists kernels for GPUs")
    return Finding(
        check="kernels of GPUs",
        status=Status.SKIPPED,
        text="this TensorFlow is built without GPUs: which ops only a host can run is not known",
    )


def _profiling(devices: Sequence[str]) -> Finding:
    device = next((name for name in devices if DeviceName.parse(name).type == "GPU"), devices[0])
    with tf.device(device):
        value = tf.random.normal([256, 256])
    function = tf.function(lambda x: tf.matmul(x, x, name="product"), autograph=False)
    with tf.device(device):
        function(value)

        def run() -> None:
            function(value)
            tf.test.experimental.sync_devices()

        events = profiled(run)
    refuse_missing_device_plane(events, DeviceName.parse(device).type)
    seconds = seconds_by_op(events, {"product"}).get("product", 0.0)
    if not seconds:
        return Finding(
            check="profiling",
            status=Status.FAILED,
            text="TensorFlow's profiler recorded no op",
            advice=f"plan with {argument('costs', 'analytic')}",
        )
    where = DeviceName.parse(device).short
    return Finding(
        check="profiling", status=Status.HOLDS, text=f"a product of 256 x 256 took {seconds * 1e6:,.0f} us on {where}"
    )


def _mechanism(mechanism: Mechanism, actual: Mapping[str, str]) -> Finding:
    if len(actual) < mechanism.least_devices:
        return Finding(
            check=mechanism.name,
            status=Status.SKIPPED,
            text=f"needs {mechanism.least_devices} devices, {len(actual)} given",
        )
    model, plan, placed = _placed(mechanism, list(actual))
    stand_in = any(name != runs for name, runs in actual.items())
    if wrong := _lint(placed, plan):
        return Finding(check=mechanism.name, status=Status.FAILED, text=wrong[0], advice=_REPORT)
    verification = api.verify(model, placed, num_steps=2)
    batch = mechanism.data()
    losses = [float(_loss(placed, batch)) for _ in range(_TRAINED_STEPS)]
    measured = statistics.median(_seconds(lambda: _loss(placed, batch)) for _ in range(_TIMED_STEPS))
    finding = Finding(
        check=mechanism.name,
        status=Status.HOLDS,
        text=f"{verification.num_ops_checked:,} ops in place, weights apart by {verification.weights_max_rel_diff:.0e}",
        predicted_seconds=0.0 if stand_in else plan.predicted.step_seconds,
        measured_seconds=0.0 if stand_in else measured,
        predicted_bytes=max(use.peak_bytes for use in plan.memory),
        measured_bytes=_peak_bytes(actual.values()),
    )
    if verification.misplaced_ops:
        text = f"{len(verification.misplaced_ops)} ops elsewhere: {verification.misplaced_ops[0]}"
        return replace(finding, status=Status.FAILED, text=text, advice=_REPORT)
    if not verification.passed:
        text = f"differs from the unplaced model: weights by {verification.weights_max_rel_diff:.0e}"
        return replace(finding, status=Status.FAILED, text=text, advice=_REPORT)
    if not all(map(math.isfinite, losses)):
        return replace(finding, status=Status.FAILED, text=f"losses are {losses}", advice=_REPORT)
    return finding


_REPORT = f"please report it with the output of {command('partition doctor', json=True)}"


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


def _peak_bytes(devices: Sequence[str] | Any) -> int:
    """Largest peak of a GPU so far, which is then forgotten; TensorFlow counts no memory of CPUs."""
    peaks = [0]
    for name in devices:
        device = DeviceName.parse(name)
        if device.type == "GPU" and device.is_local:
            peaks.append(int(tf.config.experimental.get_memory_info(device.short)["peak"]))
            tf.config.experimental.reset_memory_stats(device.short)
    return max(peaks)


def _saved_model(actual: Mapping[str, str]) -> Finding:
    if any(name != runs for name, runs in actual.items()):
        return Finding(
            check=_SAVED, status=Status.SKIPPED, text="it loads where its devices are, and some are not here"
        )
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
            return Finding(check=_SAVED, status=Status.FAILED, text=last, advice=_REPORT)
        loaded = np.load(Path(folder) / "outputs.npy")
    here = placed.predict_on_batch(x)
    apart = float(np.linalg.norm(loaded - here) / np.linalg.norm(here))
    if apart > 1e-4:
        return Finding(check=_SAVED, status=Status.FAILED, text=f"outputs differ by {apart:.0e}", advice=_REPORT)
    return Finding(
        check=_SAVED, status=Status.HOLDS, text=f"{ROWS} rows: outputs apart by {apart:.0e}, and it trains on"
    )
