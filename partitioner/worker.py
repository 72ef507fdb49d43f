"""Lend this machine's devices to a process elsewhere: `python -m partitioner.worker --port 2222`.

This is TensorFlow's own server. It knows nothing of models: the process that connects sends what is to be run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

_EPILOG = """\
the process that trains connects by
  partitioner.set_up_devices(["CPU:0", "/job:worker/task:0/CPU:0"],
                             cluster={"worker": ["HOST:2222"]})

TensorFlow listens on every network interface, asks for no password and runs
what it is sent: use it in a network that you trust.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the process is ended; prints a line when it listens. Returns the exit code if it cannot."""
    parser = argparse.ArgumentParser(
        prog="python -m partitioner.worker",
        description="Lend this machine's devices to a process that partitions a model over them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, required=True, metavar="N", help="where to listen; 0 takes a free one")
    port = parser.parse_args(arguments).port
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is imported
    import tensorflow as tf

    try:
        # Its own job and index do not matter: the process that connects says who is who.
        server = tf.distribute.Server({"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0)
    except tf.errors.OpError as error:
        print(f"error: cannot listen on port {port}: {error.message}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would never run: join() waits in C++
    devices = [f"{kind}:{i}" for kind in ("CPU", "GPU") for i, _ in enumerate(tf.config.list_physical_devices(kind))]
    print(f"listening on port {server.target.rpartition(':')[2]} with {', '.join(devices)}", flush=True)
    server.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
