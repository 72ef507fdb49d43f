"""Lost workers: name them in errors, where TensorFlow only names the failed call, and go on without them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from partitioner.emit.cluster.cluster import PROBE_SECONDS, Task, silent_workers, workers_of
from partitioner.emit.cluster.silent_worker import cutting_off_silent
from partitioner.errors import PartitionError
from partitioner.ir.devices import DeviceName


@contextmanager
def naming_lost_workers(devices: Iterable[str]) -> Iterator[None]:
    """Raise an error that names the lost devices, if a TensorFlow error in the context comes from a lost worker.

    A worker that hangs is noticed after a while (`silent_worker`).

    Args:
        devices: Canonical names of the devices in use.

    Raises:
        tf.errors.UnavailableError: A worker that holds some of `devices` does not answer any more.
    """
    used = [DeviceName.parse(device) for device in devices]
    tasks = {(device.job, device.task) for device in used}
    workers = workers_of(tasks)
    try:
        with cutting_off_silent(workers):
            yield
    except tf.errors.OpError as error:
        gone = lost_workers(workers)
        lost = [device.short for device in used if (device.job, device.task) in gone]
        if not lost:
            raise
        failure = PartitionError(
            f"lost {', '.join(lost)}: the worker at {', '.join(gone.values())} has ended or hangs",
            notes=["variables there are gone, and a process cannot go back to a worker that it lost"],
            help="start the worker again, and a new process from the last weights that were saved",
        )
        raise tf.errors.UnavailableError(None, None, str(failure)) from error


def lost_workers(workers: Mapping[Task, str]) -> dict[Task, str]:
    """Workers that do not answer, or that were restarted and do not know this process."""
    silent = silent_workers(workers, PROBE_SECONDS)
    return {task: address for task, address in workers.items() if task in silent or not _serves(*task)}


def forget_errors() -> None:
    """Let this thread go on after an error that was handled.

    TensorFlow keeps the first error of a thread's remote ops, also of ops that end later, and raises it from the next
    call that waits for them, such as `next` of any dataset.
    """
    runtime: Any = context.context()
    executor = runtime.executor
    try:
        executor.wait()
    except tf.errors.OpError:
        executor.clear_error()


def go_on_without_lost_workers() -> None:
    """From now on, let this process do all that needs no missing worker.

    At the end of Keras' epochs, and when it writes a SavedModel, TensorFlow waits until all connected workers have
    finished their calls: it fails if a worker was restarted, and may wait for ever for a missing worker. TensorFlow's
    ParameterServerStrategy leaves the wait out in the same manner.
    """
    os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] = "True"


def _serves(job: str, index: int) -> bool:
    try:
        with tf.device(DeviceName(job=job, task=index, type="CPU", index=0).canonical):
            tf.zeros(()).numpy()
    except tf.errors.OpError:
        forget_errors()
        return False
    return True
