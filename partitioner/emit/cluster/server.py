"""A worker: this machine's devices lent to a process elsewhere.

This is TensorFlow's own server. It knows nothing about models: the process that connects sends the functions to run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import tensorflow as tf

from partitioner.errors import UsageError


def serve(port: int, *, on_listening: Callable[[int, list[str]], None]) -> None:
    """Serve until the process is ended.

    Args:
        port: Where to listen; 0 takes a free port.
        on_listening: Called with the port and the devices that are lent.

    Raises:
        UsageError: It cannot listen there.
    """
    # Memory as it is needed: TensorFlow would take all that every GPU of the machine has.
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    try:
        # Its own job and index do not matter: the process that connects assigns them.
        server = tf.distribute.Server({"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0, config=config)
    except tf.errors.OpError as error:
        raise UsageError(f"cannot listen on port {port}: {error.message}", help="port 0 takes a free port") from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python's handler would never run: join() waits in C++
    devices = [f"{kind}:{i}" for kind in ("CPU", "GPU") for i, _ in enumerate(tf.config.list_physical_devices(kind))]
    on_listening(int(server.target.rpartition(":")[2]), devices)
    server.join()
