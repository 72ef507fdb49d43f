"""`partition worker --port N`: lend this machine's devices to a process elsewhere."""

from __future__ import annotations

import argparse

from partitioner.cli.parser import Parser

_EPILOG = """\
the process that trains connects by
  partitioner.set_up_devices(["CPU:0", "/job:worker/task:0/CPU:0"],
                             cluster={"worker": ["HOST:2222"]})

TensorFlow listens on every network interface, asks for no password and runs
what it is sent: use it in a network that you trust.
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage, parser.epilog = "partition worker --port N", _EPILOG
    parser.description = "Lend this machine's devices to a process that partitions a model over them."
    parser.add_argument("--port", type=int, required=True, metavar="N", help="where to listen; 0 takes a free port")
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Serve until the process is ended; prints a line when it listens."""
    from partitioner.emit.cluster.server import serve

    serve(options.port, on_listening=_say)
    return 0


def _say(port: int, devices: list[str]) -> None:
    print(f"listening on port {port} with {', '.join(devices)}", flush=True)
