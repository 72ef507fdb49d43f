"""Signals that end a run: SIGTERM as an exception, so that what a run has begun is undone, and moments without any."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is Ctrl-C. It is no KeyboardInterrupt: a search that Ctrl-C ends goes on to a
    plan, and a run that was terminated does not."""


@contextlib.contextmanager
def termination_raised() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM within the block, unless somebody else handles it."""
    if not _is_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block has ended. It must be short."""
    if not _is_main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not None}  # None: not Python's
    try:
        for number in before:
            signal.signal(number, lambda number, _frame: held.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in held[:1]:
        signal.raise_signal(number)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
