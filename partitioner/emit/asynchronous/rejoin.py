"""Reconnect to workers that were lost and started again, by the call that TensorFlow's ClusterCoordinator makes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection
from typing import Any

from tensorflow.python.eager import context

from partitioner.emit.cluster.cluster import (
    PROBE_SECONDS,
    Task,
    check_answers,
    connected_workers,
    silent_workers,
    workers_of,
)
from partitioner.emit.cluster.lost_worker import lost_workers

_rejoining = threading.Lock()


def check_workers(tasks: Collection[Task]) -> None:
    """Make sure that workers can be used, also if they were started again since this process connected to them.

    Raises:
        UsageError: A worker does not answer.
    """
    check_answers(workers_of(tasks))
    rejoin(tasks)


def are_lost(tasks: Collection[Task]) -> bool:
    """Whether any of these workers does not answer, or was restarted and does not know this process."""
    return bool(lost_workers(workers_of(tasks)))


def rejoin(tasks: Collection[Task]) -> bool:
    """Connect restarted workers to this process again; returns whether all workers are connected now.

    Their variables are gone. TensorFlow calls every worker that this process is connected to, and waits for workers
    that do not answer; so nothing is done until all answer.
    """
    if not all(map(_listens, workers_of(tasks).values())):
        return False
    with _rejoining:
        if are_lost(tasks):
            if silent_workers(connected_workers(), PROBE_SECONDS):
                return False
            runtime: Any = context.context()
            runtime.update_server_def(context.get_server_def())
        return not are_lost(tasks)


def _listens(address: str) -> bool:
    """Whether a process accepts connections at an address; False at once where the process has ended."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except OSError:
        return False
    return True
