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
        self.said(f"{text} ...")

    def said(self, text: str) -> None:
        """Print a line, and the seconds so far."""
        if self._enabled:
            print(f"[{time.monotonic() - self._start:5.1f} s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def during(self, text: str) -> Iterator[Callable[[str, float], None]]:
        """Print a pass that begins, and on a terminal show while it runs how long it has taken and will still take.

        Yields a function that is called with what runs within the pass and the fraction done. A text before a colon
        names a row, and what follows changes: `searching: best step 18 ms`. Elsewhere only a row about measuring prints
        a line, as it may take longest.
        """
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self(text)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn())  # fmt: skip
        is_shown = self._enabled and console.is_terminal
        with Bars(*columns, console=console, transient=True, disable=not is_shown) as bars:
            tasks: dict[str, Any] = {}

            def show(what: str, fraction: float) -> None:
                row = what.partition(":")[0]
                if row not in tasks:
                    tasks[row] = bars.add_task(what, total=None)
                    bars.update(tasks[text], visible=row == text)  # the pass itself, until it says what it does
                    if row != text and not console.is_terminal and row.startswith("measuring"):
                        self(what)
                bars.update(tasks[row], description=what, completed=fraction, total=1.0 if fraction else None)

            show(text, 0.0)
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
