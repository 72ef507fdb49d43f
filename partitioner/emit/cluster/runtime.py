"""Get TensorFlow ready for a plan: logical CPU devices, stand-ins for absent GPUs, workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

# The memory that TensorFlow has of a GPU stands in its list of devices, which is not in the public API.
from tensorflow.python.client import device_lib

# Whether oneDNN is on depends on the processor and the environment; the public API does not say it.
from tensorflow.python.util import _pywrap_util_port

from cost_models.scratch import Kernels
from partitioner.emit.cluster.cluster import connect
from partitioner.errors import UsageError
from partitioner.hardware.topology import PresentGpu
from partitioner.ir.devices import DeviceName

_PERSISTENT = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
"""A setting of TensorFlow, which reads it from the environment."""
_PART_MIB = 1024


def set_up_devices(names: Sequence[str], cluster: Any = None) -> dict[str, str]:
    """Make the devices of a plan available in this process.

    Logical CPU devices are created as needed. A logical CPU device replaces each GPU that this machine lacks; CPU:0
    stays the host. TensorFlow fixes its devices when it runs its first op, so this must come before. Nothing replaces a
    remote device: this process connects to its worker.

    Args:
        names: Canonical device names.
        cluster: Addresses of workers by job, or a `tf.train.ClusterSpec`; by default those in TF_CONFIG.

    Returns:
        The device that runs in place of each name, itself where it is present.

    Raises:
        UsageError: TensorFlow has already started with too few logical devices or without the workers, or a worker is
            unknown, does not answer or lacks a device.
    """
    devices = [DeviceName.parse(name) for name in names]
    local = [device for device in devices if device.is_local]
    remote = [device for device in devices if not device.is_local]
    num_gpus = len(_gpu_parts())
    absent = sorted({d for d in local if d.type == "GPU" and d.index >= num_gpus})
    num_cpus = 1 + max((d.index for d in local if d.type == "CPU"), default=0)
    stand_ins = {device: num_cpus + offset for offset, device in enumerate(absent)}
    _make_logical_cpus(num_cpus + len(absent))
    if remote:
        connect(remote, cluster)
    return {
        device.canonical: DeviceName(type="CPU", index=stand_ins[device]).canonical
        if device in stand_ins
        else device.canonical
        for device in devices
    }


def divide_gpu(count: int) -> None:
    """Let parts of this machine's first GPU be GPU:0 to `count` - 1, each with 1 GiB: they stand for several GPUs.

    Raises:
        UsageError: There is no GPU, or TensorFlow has already started.
    """
    gpu = next(iter(tf.config.list_physical_devices("GPU")), None)
    if gpu is None:
        raise UsageError("no GPU can be divided: TensorFlow sees none", help="nvidia-smi must list one")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=_PART_MIB)
    try:
        tf.config.set_logical_device_configuration(gpu, [part] * count)
    except RuntimeError as error:
        raise UsageError("the GPU cannot be divided: TensorFlow has already started") from error


def take_gpu_memory_as_needed() -> None:
    """Leave memory of the GPUs to other processes; without effect once TensorFlow has started."""
    with suppress(RuntimeError):
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)


def is_divided() -> bool:
    """Whether a GPU of this machine counts as several."""
    return len(_gpu_parts()) > len(tf.config.list_physical_devices("GPU"))


def present_gpus() -> dict[str, PresentGpu]:
    """The GPUs of this machine, by canonical device name, with the memory that TensorFlow allocates from."""
    parts = _gpu_parts()
    if any(part.memory_limit for _, part in parts):
        limits = [round((part.memory_limit or 0) * 2**20) for _, part in parts]
    elif parts:
        # The first to ask decides for the process whether TensorFlow takes all memory at once.
        config = tf.compat.v1.ConfigProto()
        config.gpu_options.allow_growth = any(tf.config.experimental.get_memory_growth(gpu) for gpu, _ in parts)
        found = device_lib.list_local_devices(config)
        limits = [device.memory_limit for device in found if device.device_type == "GPU"]
    else:
        return {}
    titles = [tf.config.experimental.get_device_details(gpu).get("device_name", "") for gpu, _ in parts]
    return {
        DeviceName(type="GPU", index=index).canonical: PresentGpu(title=title, memory_bytes=limit)
        for index, (title, limit) in enumerate(zip(titles, limits, strict=True))
    }


def _gpu_parts() -> list[tuple[Any, Any]]:
    """What TensorFlow calls GPU:0, GPU:1, …: a GPU each, or a part of one that was divided, with its configuration."""
    whole = [tf.config.LogicalDeviceConfiguration()]
    return [
        (gpu, part)
        for gpu in tf.config.list_physical_devices("GPU")
        for part in tf.config.get_logical_device_configuration(gpu) or whole
    ]


def peak_bytes(device: str) -> int | None:
    """Most bytes that this process has held on a GPU; None of other devices, whose memory TensorFlow does not count."""
    name = DeviceName.parse(device)
    if name.type != "GPU" or not name.is_local:
        return None
    return int(tf.config.experimental.get_memory_info(name.short)["peak"])


def forget_peaks(devices: Iterable[str]) -> None:
    """Let `peak_bytes` begin anew, with what the devices hold now."""
    for name in map(DeviceName.parse, devices):
        if name.type == "GPU" and name.is_local:
            tf.config.experimental.reset_memory_stats(name.short)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen_kernels() -> Kernels:
    """The kernels that TensorFlow chooses in this process; workers are assumed to have the same."""
    return Kernels(
        onednn=_pywrap_util_port.IsMklEnabled(),
        intra_op_threads=tf.config.threading.get_intra_op_parallelism_threads() or num_cores(),
        inter_op_threads=tf.config.threading.get_inter_op_parallelism_threads() or num_cores(),
        persistent_normalisation=os.environ.get(_PERSISTENT, "").lower() in ("1", "true"),
    )


def _make_logical_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = len(tf.config.get_logical_device_configuration(cpu) or [])
    if configured >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        have = len(tf.config.list_logical_devices("CPU"))
        if have < count:
            raise UsageError(
                f"TensorFlow has already started with {have} logical CPU device{'s' * (have != 1)}, {count} are needed",
                notes=["TensorFlow fixes its devices when it first runs anything (building a model does)"],
                help=f"call partitioner.set_up_devices([...]) before building the model: {count} logical CPUs",
            ) from error
