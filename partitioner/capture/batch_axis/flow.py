"""What is known of a tensor about the rows of the batch.

As sharding propagation does for a device axis (GSPMD, arXiv 2105.04663; Shardy): each value says which axis of the
tensor enumerates the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from partitioner.capture.batch_axis.sizes import Size


class Mixes(Exception):  # noqa: N818  a finding, no error
    """Rows come together, or cannot be shown to stay apart.

    Attributes:
        origin: The op that brings them together; empty for the op at hand.
        grouped: Why the batch has no parts, where the op puts rows in groups of a fixed size; else empty.
    """

    def __init__(self, origin: Origin | None = None, grouped: str = "") -> None:
        super().__init__()
        self.origin, self.grouped = origin, grouped


@dataclass(frozen=True, slots=True)
class Origin:
    """An op of the step, and the type of the op inside of it that is meant (its own, if it runs no functions)."""

    op: str
    type: str


@dataclass(frozen=True, slots=True, eq=False)
class Uniform:
    """The same for all rows: it depends on the number b of rows at most.

    Attributes:
        power: It is b**power times what does not depend on b; None where it depends on b in another way.
        numbers: The numbers in it, an object array of Size, some of them UNKNOWN; None where none is known.
        origin: Where it depends on b: the op that made it so.
        is_row_number: Whether it is the number of the current trip in a loop with a trip for each row.
    """

    power: int | None = 0
    numbers: np.ndarray | None = None
    origin: Origin | None = None
    is_row_number: bool = False

    @property
    def is_zero(self) -> bool:
        """Whether all its numbers are 0."""
        return self.numbers is not None and all(number.is_known and number.count == 0 for number in self.numbers.flat)

    def _key(self) -> Any:
        known = None if self.numbers is None else (self.numbers.shape, tuple(self.numbers.flat))
        return self.power, known, self.is_row_number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uniform) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, slots=True)
class Apart:
    """A value for each row: `axis` enumerates (major, rows, minor), and every part comes from its own row alone.

    Attributes:
        axis: Which axis.
        major: Number of times that all rows come, one after the other.
        minor: Entries of a row that come one after the other.
        power: The values are b**power times what a row alone would give.
        origin: The op that made the power other than 0.
    """

    axis: int
    major: int = 1
    minor: int = 1
    power: int = 0
    origin: Origin | None = None

    @property
    def rows(self) -> Size:
        """The size of its axis."""
        return Size(self.major * self.minor, 1)


@dataclass(frozen=True, slots=True)
class Total:
    """b**power times the sum over rows of what each row alone gives: a sum for power 0, a mean for -1."""

    power: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Row:
    """In a loop with a trip for each row: what the row of this trip alone gives."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of tensors; None while nothing is in it. Of `Row` there is one for each row, in their order."""

    item: Flow | None = None


@dataclass(frozen=True, slots=True)
class Mixed:
    """Rows may have come together at `origin`; `grouped` as in `Mixes`."""

    origin: Origin
    grouped: str = ""


Flow = Uniform | Apart | Total | Row | Items | Mixed


def uniform(numbers: np.ndarray, *, depends_on_rows: bool, origin: Origin | None) -> Uniform:
    """A tensor of these numbers; `depends_on_rows` tells whether those that are not known may."""
    powers: set[int | None] = {number.power for number in numbers.flat if number.is_known and number.count != 0}
    if any(not number.is_known for number in numbers.flat):
        powers.add(None if depends_on_rows else 0)
    power = powers.pop() if len(powers) == 1 else None if powers else 0
    known = not numbers.size or any(number.is_known for number in numbers.flat)
    return Uniform(power, numbers if known else None, None if power == 0 else origin)


def joined(first: Flow, second: Flow, here: Origin) -> Flow:
    """What is known of a tensor that is one or the other, whichever the same for all rows."""
    match first, second:
        case _ if first == second:
            return first
        case (Mixed(), _) | (_, Mixed()):
            return first if isinstance(first, Mixed) else second
        case Items(), Items():
            items = [item for item in (first.item, second.item) if item is not None]
            return Items(joined(items[0], items[-1], here)) if items else first
        case Uniform(), Uniform():
            power = first.power if first.power == second.power else None
            return Uniform(power, None, first.origin or second.origin or (None if power == 0 else here))
        case (Total(), Total()) if first.power == second.power:
            return first
        case (Total(power=-1), Uniform(power=0)) | (Uniform(power=0), Total(power=-1)):
            return first if isinstance(first, Total) else second
        case (Row(), Uniform(power=0)) | (Uniform(power=0), Row()):
            return Row()
    return Mixed(here)
