"""Store measured costs: in a JSON file of the user, and in a cache per machine, versions and settings."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec
import tensorflow as tf

from cost_models.measured import MeasuredCosts
from partitioner.emit.cluster.runtime import num_cores
from partitioner.errors import UsageError
from partitioner.ir.json import from_json, to_json
from partitioner.spelling import command
from partitioner.user_cache import cache_folder, write_whole


def read_costs(path: Path) -> MeasuredCosts:
    """Read a file of measured costs.

    Raises:
        UsageError: It cannot be read, or is no such file.
    """
    help = f"give a costs.json that `{command('partition MODEL', costs='measured')}` wrote"
    try:
        return from_json(path.read_bytes(), MeasuredCosts)
    except OSError as error:
        raise UsageError(f"cannot read the costs {str(path)!r}: {error.strerror}", help=help) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} holds no measured costs: {error}", help=help) from error


def write_costs(costs: MeasuredCosts, path: Path) -> None:
    """Write measured costs to a file, whole or not at all."""
    write_whole(path, to_json(costs, indent=2) + "\n")


def cached_costs(settings: Mapping[str, str]) -> MeasuredCosts:
    """The cached costs for these settings; empty if they cannot be read."""
    path = _cache_path(settings)
    try:
        return read_costs(path)
    except UsageError:
        return MeasuredCosts(versions=dict(settings), devices=())


def cache_costs(costs: MeasuredCosts) -> None:
    """Write measured costs to the cache. A cache that cannot be written is no error."""
    try:
        write_costs(costs, _cache_path(costs.versions))
    except OSError:
        return


def settings(*, jit_compile: bool = False) -> dict[str, str]:
    """The settings that influence the speed of ops: versions, processor, threads, instruction sets, GPUs, XLA."""
    compiled = {"jit_compile": "on"} if jit_compile else {}
    return (
        _gpu_settings()
        | compiled
        | {
            "tensorflow": tf.__version__,
            "processor": processor_title(),
            "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
            "cores": str(num_cores()),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
            "tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
        }
    )


def _gpu_settings() -> dict[str, str]:
    """GPUs, their driver and the libraries that choose their kernels; none where there is no GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {}
    build = tf.sysconfig.get_build_info()
    titles = [tf.config.experimental.get_device_details(gpu).get("device_name", "") for gpu in gpus]
    return {
        "gpus": ", ".join(titles),
        "driver": _first_line(Path("/proc/driver/nvidia/version")),
        "cuda": str(build.get("cuda_version", "")),
        "cudnn": str(build.get("cudnn_version", "")),
    }


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError:
        return ""


def processor_title() -> str:
    """The processor's name in the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _cache_path(settings: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(to_json(dict(settings)).encode()).hexdigest()[:16]
    return cache_folder() / f"costs-{digest}.json"
