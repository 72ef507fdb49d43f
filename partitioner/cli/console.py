"""Keep two streams apart: only the result on stdout; progress, without notices of libraries, on stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARIES = r"(tensorflow|keras|absl|google|numpy|jax|partitioner)\b"


class Progress:
    """Prints a line on stderr for each pass."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print the pass that begins, and the seconds so far."""
        if self._enabled:
            print(f"[{time.monotonic() - self._start:5.1f} s] {text} ...", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def bar(self) -> Iterator[Callable[[str, float], None]]:
        """A progress bar for a long pass: called with what runs now, and the fraction done.

        Only on a terminal; elsewhere it prints a single line at its begin.
        """
        from rich.console import Console
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        with Bars(console=console, transient=True, disable=not (self._enabled and console.is_terminal)) as bars:
            tasks: dict[str, Any] = {}

            def show(text: str, fraction: float) -> None:
                if text not in tasks:
                    tasks[text] = bars.add_task(text, total=1.0)
                    if not console.is_terminal:
                        self(text)
                bars.update(tasks[text], completed=fraction)

            yield show


def print_result(text: str) -> None:
    """Write `text` to stdout. A closed pipe (`| head`) is no error; characters outside the encoding become `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The rest of the buffer would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """Redirect stdout to stderr, also for C++ and for child processes of the user's file."""
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr), _descriptor(1, 2):
        yield


@contextlib.contextmanager
def without_native_notices(*, enabled: bool) -> Iterator[None]:
    """Hold back stderr within the block, also output of C++; all of it is shown if the block fails.

    TensorFlow and Graphviz write notices that no setting turns off. No user code may run in the block.
    """
    if not enabled:
        yield
        return
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        try:
            with _descriptor(2, kept.fileno()):
                yield
                sys.stderr.flush()
        except Exception:
            kept.seek(0)
            print(kept.read().decode(errors="replace"), end="", file=sys.stderr)
            raise


@contextlib.contextmanager
def library_logs(*, shown: bool) -> Iterator[None]:
    """Show or hide the warnings and logs of the libraries; the user's own warnings stay."""
    # TensorFlow reads this when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if shown else "3")
    loggers = [] if shown else [logging.getLogger(name) for name in ("tensorflow", "absl")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        if not shown:
            warnings.filterwarnings("ignore", module=_LIBRARIES)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _descriptor(number: int, target: int) -> Iterator[None]:
    """File descriptor `number` writes to `target` within the block."""
    try:
        saved = os.dup(number)
    except OSError:  # it is closed: there is nothing to hold back
        yield
        return
    os.dup2(target, number)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)
