"""Let Ctrl-C stop a step that is running, without leaving it half applied.

Python handles a signal only between two of its own instructions, and a whole step is a single instruction. So while a
step runs, the interpreter's C handler notifies a thread at once (`signal.set_wakeup_fd`), the thread cancels the step,
and KeyboardInterrupt is raised. That thread waits for the steps of the process, one after the other: to start one for
each took a tenth of a millisecond, and more where TensorFlow kept all cores busy.

Afterwards, every variable is as before the step. If Ctrl-C came while the step wrote variables, the updates end first,
and every variable is as after the step. Metrics, which are not part of a step, may miss a step that was applied. A
second Ctrl-C does not wait. A step stops between two ops: a running op runs to its end.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from functools import cache

# Cancelling functions that Python has called has no public API.
from tensorflow.python.eager import cancellation

from partitioner.emit.pipeline.update_lock import acquire_updates


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Cancel the TensorFlow functions called in the context when Ctrl-C is pressed.

    Does nothing where Ctrl-C does not mean "raise KeyboardInterrupt here": outside the main thread, under a handler for
    SIGINT that is not Python's own (its owner decides when to stop), and within another cancellable call.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if not _interrupt_is_ours():
        yield
        return
    step = _Step()
    with _watcher(os.getpid()).watching(step):
        try:
            with cancellation.CancellationManagerContext(step.manager):
                yield
        except Exception:
            # Python's handler has run by now, but TensorFlow was making an exception of its own and swallowed Python's.
            if step.pressed:
                raise KeyboardInterrupt from None
            raise


def _interrupt_is_ours() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and cancellation.context() is None
    )


class _Step:
    """A step that may be cancelled; `pressed` says that Ctrl-C was why, as an op that fails cancels it too."""

    def __init__(self) -> None:
        self.manager = cancellation.CancellationManager()
        self._canceller: threading.Thread | None = None

    @property
    def pressed(self) -> bool:
        return self._canceller is not None

    def press(self) -> None:
        """Cancel it between updates; at the second time, at once."""
        if self._canceller is not None:
            self.manager.start_cancel()
            return
        self._canceller = threading.Thread(target=self._cancel_between_updates, daemon=True)
        self._canceller.start()

    def wait(self) -> None:
        """Until it is cancelled, if it is to be."""
        if self._canceller is not None:
            self._canceller.join()

    def _cancel_between_updates(self) -> None:
        lock = acquire_updates()
        self.manager.start_cancel()
        del lock


class _Watcher:
    """A thread that receives the numbers of signals, and tells the step that runs."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._lock = threading.Lock()
        self._step: _Step | None = None
        self._before = -1
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def watching(self, step: _Step) -> Iterator[None]:
        """Press the step on SIGINT; an earlier receiver of signals still receives them."""
        self._step = step
        before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        if before != self._theirs.fileno():  # as it is where Ctrl-C came while a step was left
            self._before = before
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._before)
            self._tell()  # lest the next step is told of what came in this one
            self._step = None
            step.wait()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ours, selectors.EVENT_READ)
            while True:
                selector.select()
                self._tell()

    def _tell(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # the other thread was first
            numbers = self._ours.recv(4096)
            if self._before >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._before, numbers)
            for _ in range(numbers.count(signal.SIGINT)):
                if self._step is not None:
                    self._step.press()


@cache
def _watcher(_process: int) -> _Watcher:
    """That of a process: a fork has the sockets of its parent, but not the thread."""
    return _Watcher()
