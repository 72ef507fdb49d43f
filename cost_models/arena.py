"""How much of one region of memory an allocator needs for buffers that come and go: more than is held at any time.

TensorFlow's allocator for GPUs (xla/tsl/framework/bfc_allocator.cc, "best fit with coalescing") gives out the smallest
free piece that is large enough, and joins pieces that are let go with free neighbours. A piece is cut in two only if it
is at least twice as large as needed, or 128 MiB larger; otherwise the rest of it is lost until it is let go.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable

STEP_BYTES = 256
_MOST_LOST_BYTES = 128 * 2**20


class Arena:
    """A region with no end. `used_bytes` is how far it was ever used."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._pieces: dict[Hashable, tuple[int, int]] = {}
        # Free pieces below `used_bytes`: by size and start, and by their two ends.
        self._free: list[tuple[int, int]] = []
        self._start_of_end: dict[int, int] = {}
        self._end_of_start: dict[int, int] = {}

    def take(self, key: Hashable, size_bytes: int) -> None:
        """Give out a buffer."""
        if size_bytes <= 0:
            return
        size = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        index = bisect.bisect_left(self._free, (size, 0))
        if index < len(self._free):
            found, start = self._free[index]
            self._remove(start, start + found)
            if found >= 2 * size or found - size >= _MOST_LOST_BYTES:
                self._add(start + size, start + found)
                found = size
            self._pieces[key] = (start, start + found)
            return
        # What lies free at the end is part of what follows it.
        start = self._start_of_end.get(self.used_bytes, self.used_bytes)
        if start < self.used_bytes:
            self._remove(start, self.used_bytes)
        self.used_bytes = start + size
        self._pieces[key] = (start, self.used_bytes)

    def drop(self, key: Hashable) -> None:
        """Take a buffer back; one that was never given out is nothing."""
        start, end = self._pieces.pop(key, (0, 0))
        if start == end:
            return
        if (before := self._start_of_end.get(start)) is not None:
            self._remove(before, start)
            start = before
        if (after := self._end_of_start.get(end)) is not None:
            self._remove(end, after)
            end = after
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        bisect.insort(self._free, (end - start, start))
        self._start_of_end[end] = start
        self._end_of_start[start] = end

    def _remove(self, start: int, end: int) -> None:
        del self._free[bisect.bisect_left(self._free, (end - start, start))]
        del self._start_of_end[end], self._end_of_start[start]


def arena_bytes(changes: Iterable[tuple[Hashable, int]]) -> int:
    """How much of a region buffers need: each is taken with its bytes, and let go with zero or a negative number."""
    arena = Arena()
    for key, size_bytes in changes:
        if size_bytes > 0:
            arena.take(key, size_bytes)
        else:
            arena.drop(key)
    return arena.used_bytes
