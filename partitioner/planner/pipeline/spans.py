"""Spans of items that may become stages, and what lies in each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.least_cut import Places
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import OrderedItems


@dataclass(frozen=True, eq=False)
class Spans(Places):
    """Spans of items; whatever is computed for them has the shape of `starts` and `ends`, which broadcast.

    Attributes:
        items: The items in order.
    """

    items: OrderedItems
    _known: dict[tuple[str, int], Floats] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def up_to(cls, items: OrderedItems, length: int, starts: range) -> Spans:
        """All spans of so many items at the most that start there: `(starts, length + 1)`, by start and length.

        Of those that are longer than what is left, each is the span that ends with the last item.
        """
        first = np.arange(starts.start, starts.stop)[:, None]
        return cls(first, np.minimum(first + np.arange(length + 1), len(items.order)), items)

    @classmethod
    def one(cls, items: OrderedItems, start: int, end: int) -> Spans:
        """A single span, `(1, 1)`."""
        return cls(np.array([[start]]), np.array([[end]]), items)

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        """Where there is no item."""
        return self.starts == self.ends

    def by_start(self, values: Floats) -> Floats:
        """Of values of positions `(n + 1,)`, those where spans start."""
        return values[self.starts]

    def by_end(self, values: Floats) -> Floats:
        """Of values of positions `(n + 1,)`, those where spans end."""
        return values[self.ends]

    def total(self, sums: Floats) -> Floats:
        """What the items of each span add to running sums `(n + 1,)`."""
        return self.by_end(sums) - self.by_start(sums)

    def between(self, name: str, device: int = 0) -> Floats:
        """The seconds on a device, or the bytes, that an attribute of the items has; not to be written to."""
        sums: Floats = getattr(self.items, name)
        key = name, self.items.alike[device] if sums.ndim > 1 else 0
        if key not in self._known:
            self._known[key] = self.total(sums[key[1]] if sums.ndim > 1 else sums)
        return self._known[key]

    @cached_property
    def most_passing_bytes(self) -> Floats:
        """The most of the bytes of a span's items that are held for a moment; 0 of an empty span."""
        lengths = self.ends - self.starts
        level = np.maximum(np.frexp(lengths)[1] - 1, 0)  # two runs of 2**level items cover the span
        last = np.maximum(self.ends - (1 << level), 0)
        most = self.items.most_passing_of_runs
        return np.where(lengths > 0, np.maximum(most[level, self.starts], most[level, last]), 0.0)
