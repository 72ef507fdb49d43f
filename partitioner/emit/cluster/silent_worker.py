"""End calls to a worker that hangs. TensorFlow waits for it for ever, and cancelling a step does not end its calls."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from partitioner.emit.cluster.cluster import Task, silent_workers

CHECK_SECONDS = 15.0
"""Seconds between two checks, while a step runs, whether workers accept connections."""

ANSWER_SECONDS = 30.0
"""A worker that accepts no connection for so many seconds hangs: a busy worker still accepts, in other threads."""

_INTERNET = (socket.AF_INET, socket.AF_INET6)


@contextlib.contextmanager
def cutting_off_silent(workers: Mapping[Task, str]) -> Iterator[None]:
    """Close the connections to workers that hang: calls in the context then fail as if these workers had ended.

    Args:
        workers: Addresses, `host:port`, of the workers that are called in the context.
    """
    if not workers:
        yield
        return
    ended = threading.Event()
    threading.Thread(target=_watch, args=(workers, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(workers: Mapping[Task, str], ended: threading.Event) -> None:
    while not ended.wait(CHECK_SECONDS):
        silent = silent_workers(workers, ANSWER_SECONDS)
        if silent and not ended.is_set():
            _cut_off(workers[task] for task in silent)


def _cut_off(addresses: Iterable[str]) -> None:
    """Shut down the sockets of this process to these addresses: gRPC gives Python no other access."""
    ends = {end for address in addresses for end in _ends(address)}
    for descriptor in filter(Path.is_socket, Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family not in _INTERNET:
                continue  # What is on the other end of a pipe between processes has no port.
            host, port, *_ = connection.getpeername()
            if (_plain(host), port) in ends:
                connection.shutdown(socket.SHUT_RDWR)


def _ends(address: str) -> Iterator[tuple[str, int]]:
    host, _, port = address.rpartition(":")
    for *_, end in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
        yield _plain(str(end[0])), int(end[1])


def _plain(host: str) -> str:
    """The normal form of an address: sockets for both kinds of addresses show 1.2.3.4 as ::ffff:1.2.3.4."""
    parsed = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
