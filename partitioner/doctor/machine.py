"""Checks of the machine: its devices, their memory, the kernels that TensorFlow lists, and its profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from partitioner.doctor.finding import Finding, Status
from partitioner.emit.cluster.runtime import is_divided, present_gpus
from partitioner.gpu_kernels import knows_gpu_kernels
from partitioner.hardware.topology import build_topology
from partitioner.ir.devices import DeviceName
from partitioner.ir.units import format_bytes
from partitioner.measure.profiler import profiled
from partitioner.measure.step_times import refuse_missing_device_plane, seconds_by_op
from partitioner.spelling import argument

_MISSING_GPU = (
    "pip install 'tensorflow[and-cuda]' and a driver for it; nvidia-smi must list the GPU, and CUDA_VISIBLE_DEVICES "
    "must not hide it"
)


def presence(actual: Mapping[str, str]) -> Finding:
    """Whether all devices are here; `actual` maps each to the one that runs in its place."""
    absent = [DeviceName.parse(name).short for name, runs in actual.items() if name != runs]
    seen = ", ".join(
        f"{len(found)} {kind}" for kind in ("CPU", "GPU") if (found := tf.config.list_physical_devices(kind))
    )
    seen += ", of which these are parts" if is_divided() else ""
    if not absent:
        return Finding(check="devices", status=Status.HOLDS, text=f"all are here; TensorFlow sees {seen}")
    return Finding(
        check="devices",
        status=Status.FAILED,
        text=f"not here: {', '.join(absent)}; TensorFlow sees {seen}. CPU devices stand in below",
        advice=_MISSING_GPU,
    )


def memory(names: Sequence[str]) -> Finding:
    """The memory that plans may use, and whether it is what the catalogue says of GPUs that are here."""
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
        if (
            placed.name in gpus
            and not is_divided()
            and not 0.97 <= placed.memory_bytes / predicted.memory_bytes <= 1.03
        ):
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


def kernels() -> Finding:
    """Whether TensorFlow lists kernels of GPUs."""
    if knows_gpu_kernels():
        return Finding(check="kernels of GPUs", status=Status.HOLDS, text="this TensorFlow lists kernels for GPUs")
    return Finding(
        check="kernels of GPUs",
        status=Status.SKIPPED,
        text="this TensorFlow is built without GPUs: which ops only a host can run is not known",
    )


def profiling(devices: Sequence[str]) -> Finding:
    """Whether the profiler records ops, and of a GPU its kernels.

    Raises:
        UsageError: It records none of a GPU.
    """
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
