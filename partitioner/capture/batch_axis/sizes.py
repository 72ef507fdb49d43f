"""Sizes that depend on the number of rows: c * b**k for a batch of b rows, with their arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Count = int | float | Fraction


@dataclass(frozen=True, slots=True)
class Size:
    """The number `count * b**power`, for any number b >= 1 of rows.

    Arithmetic gives UNKNOWN where the result is no such number for all b; comparisons give 0 or 1.
    """

    count: Count
    power: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it is a number of this form at all."""
        return not (isinstance(self.count, float) and math.isnan(self.count))

    @property
    def is_constant(self) -> bool:
        """Whether it is a known number that does not depend on the rows."""
        return self.is_known and (self.power == 0 or self.count == 0)

    def at(self, rows: int) -> Count:
        """The number for a batch of so many rows."""
        return self.count * Fraction(rows) ** self.power if self.is_known else self.count

    def __add__(self, other: Size) -> Size:
        if not (self.is_known and other.is_known):
            return UNKNOWN
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        return size(self.count + other.count, self.power) if self.power == other.power else UNKNOWN

    def __neg__(self) -> Size:
        return Size(-self.count, self.power)

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        return size(self.count * other.count, self.power + other.power)

    def __truediv__(self, other: Size) -> Size:
        if not other.is_known or other.count == 0:
            return UNKNOWN
        exact = isinstance(self.count, float) or isinstance(other.count, float)
        count = self.count / other.count if exact else Fraction(self.count) / Fraction(other.count)
        return size(count, self.power - other.power)

    def __floordiv__(self, other: Size) -> Size:
        quotient = self / other
        if self.is_constant and other.is_constant and quotient.is_known:
            return size(self.count // other.count)
        return quotient if is_whole(quotient) and quotient.power >= 0 else UNKNOWN

    def __mod__(self, other: Size) -> Size:
        if self.is_constant and other.is_constant and other.count:
            return size(self.count % other.count)
        return Size(0) if (self // other).is_known else UNKNOWN

    def compared(self, other: Size) -> int | None:
        """The sign of their difference, if it is the same for all numbers of rows."""
        if not (self.is_known and other.is_known):
            return None
        if self.power == other.power or 0 in (self.count, other.count):
            return int(self.count > other.count) - int(self.count < other.count)
        low, high = sorted((self, other), key=lambda size: size.power)
        if high.count <= max(low.count, 0):
            return None
        return 1 if high is self else -1

    def largest(self, other: Size) -> Size:
        """The larger of both."""
        if not (self.is_known and other.is_known):
            return UNKNOWN
        low, high = sorted((self, other), key=lambda s: s.power)
        if low.power == high.power:
            return low if low.count > high.count else high
        return high if high.count >= max(low.count, 0) else UNKNOWN  # b >= 1

    def smallest(self, other: Size) -> Size:
        """The smaller of both."""
        larger = self.largest(other)
        if not larger.is_known:
            return UNKNOWN
        return other if larger == self else self


UNKNOWN = Size(math.nan)
"""A number of which nothing is known."""


def size(count: Count, power: int = 0) -> Size:
    """The size, with whole counts as int."""
    if isinstance(count, Fraction) and count.denominator == 1:
        count = int(count)
    return Size(count, power if count else 0)


def is_whole(value: Size) -> bool:
    """Whether it is a known whole multiple of a power of the rows."""
    return value.is_known and not isinstance(value.count, float) and Fraction(value.count).denominator == 1


def product(sizes: Iterable[Size]) -> Size:
    """Their product; 1 of none."""
    result = Size(1)
    for size in sizes:
        result = result * size
    return result


def numbers(values: Any) -> np.ndarray:
    """An array of Size from an array of numbers or Sizes, with its shape."""
    given = np.asarray(values, dtype=object)
    result = np.empty(given.shape, dtype=object)
    for index, value in np.ndenumerate(given):
        result[index] = value if isinstance(value, Size) else Size(_plain(value))
    return result


def _plain(value: Any) -> Count:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | Fraction) else math.nan
