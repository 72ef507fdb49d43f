"""Signals that end a run, as exceptions, so that what a run has begun is undone; and moments without any."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from partitioner.errors import PartitionError


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is Ctrl-C. It is no KeyboardInterrupt: a search that Ctrl-C ends goes on to a
    plan, and a run that was terminated does not."""


@contextlib.contextmanager
def interruptions_raised() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGINT and `Terminated` on SIGTERM within the block; handlers of somebody else stay.

    C code that fails while a signal arrives may put an exception of its own (`SystemError`) in the place of the
    handler's. So an error that leaves the block after a signal came counts as the signal's, unless it is one of ours.
    """
    if not _is_main_thread():
        yield
        return
    kinds: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt}
    takes_sigterm = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if takes_sigterm:
        kinds[signal.SIGTERM] = Terminated
        signal.signal(signal.SIGTERM, _raise)
    with _arrivals() as arrived:
        try:
            yield
        except Exception as error:
            lost = [kinds[number] for number in arrived() if number in kinds]
            if lost and _may_be_of_a_signal(error):
                raise lost[-1] from error
            raise
        finally:
            if takes_sigterm:
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


@contextlib.contextmanager
def _arrivals() -> Iterator[Callable[[], bytes]]:
    """The numbers of the signals that have come, whatever became of the exceptions of their handlers."""
    read, written = socket.socketpair()
    with read, written:
        read.setblocking(False)
        written.setblocking(False)

        def arrived() -> bytes:
            with contextlib.suppress(BlockingIOError):
                return read.recv(4096)
            return b""

        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        try:
            yield arrived
        finally:
            signal.set_wakeup_fd(before)


def _may_be_of_a_signal(error: BaseException) -> bool:
    """Our own errors are not, but for those that report what C code made of a signal."""
    if not isinstance(error, PartitionError):
        return True
    cause = error.__cause__ or error.__context__
    return isinstance(cause, SystemError)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
