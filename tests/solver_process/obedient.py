"""A solver that does what the request says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def answer(request: bytes, send: Callable[[str], None]) -> None:
    match request.decode().strip().strip('"').split(":"):
        case ["pid"]:
            send(str(os.getpid()))
        case ["count", number]:
            for line in range(int(number)):
                send(str(line))
        case ["fail", reason]:
            raise RuntimeError(reason)
        case ["banner"]:
            os.write(1, b"a banner\n")  # as a library would, to the file descriptor itself
            send("answered")
        case ["wait"]:
            send("begun")
            time.sleep(60)
        case [size]:
            send(str(len(size)))
