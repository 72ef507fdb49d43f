"""Connections to workers that hang are ended, and nothing else that the process has open."""

from __future__ import annotations

import socket
from pathlib import Path

from partitioner.emit.cluster import silent_worker


def test_a_unix_socket_of_the_process_does_not_keep_connections_to_a_silent_worker_open() -> None:
    ours, theirs = socket.socketpair()  # Made first: descriptors are visited in the order in which they were opened.
    with (
        ours,
        theirs,
        socket.create_server(("127.0.0.1", 0)) as worker,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ends = [server.getsockname() for server in (worker, other)]
        with socket.create_connection(ends[0], 30) as silent, socket.create_connection(ends[1], 30) as answering:
            silent_worker._cut_off([f"localhost:{ends[0][1]}"])
            assert silent.recv(1) == b""
            with other.accept()[0] as accepted:
                accepted.sendall(b"y")
                assert answering.recv(1) == b"y"
            theirs.sendall(b"y")
            assert ours.recv(1) == b"y"


def test_descriptors_that_are_no_sockets_are_left_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"):
        before = set(Path("/dev/fd").iterdir())
        silent_worker._cut_off(["127.0.0.1:1"])
        assert set(Path("/dev/fd").iterdir()) == before
