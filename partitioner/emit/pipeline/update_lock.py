"""A lock that a step holds while it writes variables; to cancel a step, take it first.

Updates cannot be undone, so a step must be cancelled either before its first update or after its last. The lock is an
op of the graph: waiting for it can be cancelled, and a step always releases it at its end. It belongs to the process
and is found by its name, so a SavedModel holds no reference to it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from partitioner.emit.pipeline.microbatches import HOST


def acquire_updates() -> Any:
    """Wait for the lock and hold it: in Python until the tensor is dropped, in a graph until its last use."""
    with tf.device(HOST):
        return tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(container="", shared_name="partitioner_updates"))


def release_updates(lock: Any) -> None:
    """Use the lock of a graph for the last time."""
    with tf.device(HOST):
        tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
