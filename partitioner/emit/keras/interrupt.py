"""Let Ctrl-C stop a step that is running, without leaving it half applied.

Python handles a signal only between two of its own instructions, and a whole step is a single instruction. So while a
step runs, the interpreter's C handler notifies a thread at once (`signal.set_wakeup_fd`), the thread cancels the step,
and KeyboardInterrupt is raised.

Afterwards, every variable is as before the step. If Ctrl-C came while the step wrote variables, the updates end first,
and every variable is as after the step. Metrics, which are not part of a step, may miss a step that was applied. A
second Ctrl-C does not wait. A step stops between two ops: a running op runs to its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator

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
    manager = cancellation.CancellationManager()
    pressed = threading.Event()  # the manager does not say it: an op that fails cancels it too
    with _watched(manager, pressed):
        try:
            with cancellation.CancellationManagerContext(manager):
                yield
        except Exception:
            # Python's handler has run by now, but TensorFlow was making an exception of its own and swallowed Python's.
            if pressed.is_set():
                raise KeyboardInterrupt from None
            raise


def _interrupt_is_ours() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and cancellation.context() is None
    )


@contextlib.contextmanager
def _watched(manager: cancellation.CancellationManager, pressed: threading.Event) -> Iterator[None]:
    """Let a thread cancel on SIGINT; an earlier receiver of signals still receives them."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(ours, before, manager, pressed), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        watcher.join()
        ours.close()


def _watch(
    pipe: socket.socket, before: int, manager: cancellation.CancellationManager, pressed: threading.Event
) -> None:
    """Receive the numbers of signals until the other end is closed."""
    canceller = threading.Thread(target=_cancel_between_updates, args=(manager,), daemon=True)
    while numbers := pipe.recv(16):
        if before >= 0:
            with contextlib.suppress(OSError):
                os.write(before, numbers)
        if signal.SIGINT not in numbers:
            continue
        if pressed.is_set():
            manager.start_cancel()
        else:
            pressed.set()
            canceller.start()
    if pressed.is_set():
        canceller.join()


def _cancel_between_updates(manager: cancellation.CancellationManager) -> None:
    lock = acquire_updates()
    manager.start_cancel()
    del lock
