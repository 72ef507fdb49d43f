"""Logical CPU devices as stand-ins for accelerators: a thread each, and if asked for, one op at a time on each."""

from __future__ import annotations

import os


def start(num_devices: int, *, num_threads: int | None = None, serial: bool = False, first: int = 0) -> list[str]:
    """Set TensorFlow up, before it runs anything; the names of the devices.

    Each op runs on one thread, and as many ops at a time as there are threads (by default, devices), on whichever
    device they are. So while one device waits, another may run two of its ops at once, which no GPU would. With
    `serial`, each op waits for the one before it on its device.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    import partitioner
    from partitioner.stages import run_ahead

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads or num_devices)
    if serial:
        run_ahead.ORDER = run_ahead.ORDER_IN_STAGES = run_ahead.Order(ahead=1, ahead_of_updates=1, least_rank=0)
    devices = [f"CPU:{first + index}" for index in range(num_devices)]
    partitioner.set_up_devices(devices)
    return devices
