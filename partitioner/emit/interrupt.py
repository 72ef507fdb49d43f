"""Let Ctrl-C stop a step that is running.

Python sees a signal only between two of its own instructions, and a step is one of them. So while a step runs, the
interpreter's C handler tells a thread of a signal at once (`signal.set_wakeup_fd`), the thread cancels the step, and
Python, back from it, raises KeyboardInterrupt as ever.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

# Cancelling functions that Python has called has no public API.
from tensorflow.python.eager import cancellation


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Cancel the TensorFlow functions called within on SIGINT. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    manager = cancellation.CancellationManager()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    watcher = threading.Thread(target=_cancel_on_signal, args=(ours, manager), daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        with cancellation.CancellationManagerContext(manager):
            yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        watcher.join()
        ours.close()


def _cancel_on_signal(pipe: socket.socket, manager: cancellation.CancellationManager) -> None:
    """Wait for the numbers of signals that arrive, until the other end is closed."""
    while numbers := pipe.recv(16):
        if signal.SIGINT in numbers:
            manager.start_cancel()
