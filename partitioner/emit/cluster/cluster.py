"""Reach worker processes through TensorFlow's own cluster runtime.

This process is always the job `localhost`, whatever its name in the cluster: `CPU:0` is the same device with and
without workers.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import grpc
import tensorflow as tf

# No public API says whether TensorFlow has started and to what it is connected.
from tensorflow.python.eager import context

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName, number_ranges, short_ranges
from partitioner.spelling import command

_LOCAL_JOB = "localhost"
_CONNECT_SECONDS = 5.0
PROBE_SECONDS = 1.0
"""Seconds in which a connected worker must answer."""
_MOST_EXAMPLES = 3

Task = tuple[str, int]
"""A process of a cluster: its job, and its index there."""


def connect(devices: Collection[DeviceName], cluster: Any = None) -> None:
    """Connect this process to the workers that hold `devices`, unless it is connected.

    Args:
        devices: Remote devices.
        cluster: Addresses by job, `{"worker": ["host:2222"]}`, or a `tf.train.ClusterSpec`; by default those in the
            environment variable TF_CONFIG.

    Raises:
        UsageError: The cluster lacks a worker, a worker does not answer or lacks a device, or TensorFlow has started.
    """
    wanted = {(device.job, device.task) for device in devices}
    workers = connected_workers()
    if workers and not wanted <= set(workers):
        raise UsageError(
            f"this process is not connected to {_names(wanted - set(workers))}",
            notes=[f"it is to {_names(workers)}, and TensorFlow cannot add another"],
            help="name every device in the first call of partitioner.set_up_devices([...])",
        )
    if not workers:
        addresses, own_address = _cluster_of_environment() if cluster is None else (_addresses(cluster), "")
        workers = _choose(wanted, addresses)
        _check_not_started()
        check_answers(workers)
        _connect(workers, own_address)
    _check_present(devices)


def connected_workers() -> dict[Task, str]:
    """Address of each worker that this process is connected to."""
    server: Any = context.get_server_def()
    jobs = server.cluster.job if server is not None else ()
    return {(job.name, index): job.tasks[index] for job in jobs if job.name != _LOCAL_JOB for index in job.tasks}


def workers_of(tasks: Collection[Task]) -> dict[Task, str]:
    """Address of each of these workers that this process is connected to."""
    return {task: address for task, address in connected_workers().items() if task in tasks}


def silent_workers(workers: Mapping[Task, str], seconds: float) -> list[Task]:
    """The workers that do not take a connection within some seconds."""
    channels = {task: grpc.insecure_channel(address) for task, address in workers.items()}
    ready = {task: grpc.channel_ready_future(channel) for task, channel in channels.items()}
    silent = []
    for task, future in ready.items():
        try:
            future.result(timeout=seconds)
        except grpc.FutureTimeoutError:
            future.cancel()
            silent.append(task)
        channels[task].close()
    return silent


def _cluster_of_environment() -> tuple[dict[Task, str], str]:
    """Addresses in TF_CONFIG: of the other processes, and of this process if it is named."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        addresses = _addresses(config.get("cluster", {}))
        task = config.get("task") or {}
        return addresses, addresses.pop((task["type"], int(task["index"])), "") if task else ""
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"TF_CONFIG is not as TensorFlow wants it: {error!r}",
            notes=[text],
            help=f"e.g. TF_CONFIG='{_example('worker', 0)}'",
        ) from error


def _addresses(cluster: Any) -> dict[Task, str]:
    try:
        spec = tf.train.ClusterSpec(cluster)
        addresses = {
            (job, index): spec.task_address(job, index) for job in spec.jobs for index in spec.task_indices(job)
        }
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{cluster!r} is not a cluster: {error}", help="""e.g. cluster={"worker": ["HOST:PORT"]}"""
        ) from error
    wrong = [address for address in addresses.values() if not address.rpartition(":")[2].isdecimal()]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not the address of a worker", help="e.g. localhost:2222")
    return addresses


def _choose(wanted: Iterable[Task], addresses: Mapping[Task, str]) -> dict[Task, str]:
    """Addresses of the workers that are wanted; others may be away."""
    missing = sorted(set(wanted) - set(addresses))
    if missing:
        example = _example(*missing[-1])
        raise UsageError(
            f"cannot run on {_names(missing)}: the address is unknown",
            notes=[f"the cluster has {_names(addresses)}" if addresses else "no cluster is given"],
            help=f"partitioner.set_up_devices([...], cluster=...), or TF_CONFIG='{example}' in the environment; "
            f"to plan only: {command('partition MODEL', dry_run=True)}",
        )
    return {task: addresses[task] for task in sorted(wanted)}


def _check_not_started() -> None:
    runtime: Any = context.context()
    if runtime._initialized:
        raise UsageError(
            "TensorFlow has already started, and connecting to workers would cut it off from its variables",
            notes=["TensorFlow starts when it first runs anything (building a model does)"],
            help="call partitioner.set_up_devices([...]) with every device before building the model",
        )


def check_answers(workers: Mapping[Task, str]) -> None:
    """Make sure that workers take connections: TensorFlow itself would wait for ever.

    Raises:
        UsageError: A worker does not.
    """
    silent = silent_workers(workers, _CONNECT_SECONDS)
    if silent:
        port = workers[silent[0]].rpartition(":")[2]
        raise UsageError(
            f"no worker answers at {', '.join(workers[task] for task in silent)}",
            notes=[f"waited {_CONNECT_SECONDS:g} s for {_names(silent)}"],
            help="start it there: " + command("partition worker", port=port),
        )


def _connect(workers: Mapping[Task, str], own_address: str) -> None:
    jobs: dict[str, Any] = {_LOCAL_JOB: [own_address or _free_address(workers.values())]}
    for (job, index), address in workers.items():
        jobs.setdefault(job, {})[index] = address
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(jobs), job_name=_LOCAL_JOB, make_master_device_default=False
    )


def _free_address(peers: Iterable[str]) -> str:
    """The address of this process for workers. (TensorFlow would send `localhost`, even to other machines.)"""
    own = [_address_towards(peer) for peer in peers]
    host = next((address for address in own if not address.startswith("127.")), own[0])
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{host}:{free.getsockname()[1]}"


def _address_towards(peer: str) -> str:
    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # sends nothing, only finds the route
        return probe.getsockname()[0]


def _check_present(devices: Iterable[DeviceName]) -> None:
    present = [DeviceName.parse(d.name) for kind in ("CPU", "GPU") for d in tf.config.list_logical_devices(kind)]
    absent = [device.canonical for device in devices if device not in present]
    if absent:
        remote = [device.canonical for device in present if not device.is_local]
        raise UsageError(
            f"the workers do not have {', '.join(short_ranges(absent))}",
            notes=[f"they have {', '.join(short_ranges(remote))}"],
        )


def _names(tasks: Iterable[Task]) -> str:
    by_job: dict[str, list[int]] = {}
    for job, index in sorted(tasks):
        by_job.setdefault(job, []).append(index)
    return ", ".join(f"/job:{job}/task:{tasks}" for job, indices in by_job.items() for tasks in number_ranges(indices))


def _example(job: str, index: int) -> str:
    count = index + 1
    addresses = ["HOST:PORT"] * count if count <= _MOST_EXAMPLES else ["HOST:PORT", f"... {count} in all"]
    return json.dumps({"cluster": {job: addresses}})
