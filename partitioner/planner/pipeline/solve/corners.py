"""Which positions a mean of positions needs: layers that repeat lie on lines, of which it needs the ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Layers that repeat have no more items: further apart, nothing is looked for.
_MOST_ITEMS_OF_A_LAYER = 64
# What sums of the same numbers differ by, of sums that are about 1.
_ROUNDING = 1e-12


class Corners:
    """Positions in ranges that are not midway, in all of some running sums, between two others of the range.

    Each of the others is a mean of corners: from one that is midway between two, go to either, and on, until a corner.

    Args:
        sums: Running sums, `(sums, n + 1)`, as shares of the largest.
    """

    def __init__(self, sums: NDArray[np.float64]) -> None:
        count = sums.shape[1]
        self._is_midway = np.zeros((min(_MOST_ITEMS_OF_A_LAYER, (count - 1) // 2) + 1, count), dtype=bool)
        for far in range(1, len(self._is_midway)):
            means = (sums[:, : -2 * far] + sums[:, 2 * far :]) / 2
            self._is_midway[far, far:-far] = np.abs(sums[:, far:-far] - means).max(axis=0) < _ROUNDING
        self._known: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def within(self, first: int, last: int) -> NDArray[np.bool_]:
        """`(n + 1,)`: whether a position is a corner of the range."""
        if (first, last) not in self._known:
            corners = np.zeros(self._is_midway.shape[1], dtype=bool)
            corners[first : last + 1] = True
            for far in range(1, min(len(self._is_midway), (last - first) // 2 + 1)):
                between = slice(first + far, last + 1 - far)
                corners[between] &= ~self._is_midway[far, between]
            self._known[first, last] = corners
        return self._known[first, last]
