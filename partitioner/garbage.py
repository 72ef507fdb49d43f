"""Suspend Python's cyclic garbage collector while many lasting objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Suspend collections in the block: each would visit every op and cost made so far, and free almost nothing.

    What was made counts as old afterwards, so that the next collection of young objects does not visit it either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # else somebody's frozen objects would thaw
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
