"""Results of functions by the objects that they were given, where these are too large to be compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class ByIdentity:
    """Calls functions once for the same objects, and keeps these and the results.

    An object is the same only if it is that very object: graphs and costs of ops are made once, and not changed.
    """

    def __init__(self) -> None:
        self._made: dict[object, tuple[tuple[object, ...], Any]] = {}

    def __call__(self, function: Callable[..., Made], *objects: object, **values: Hashable) -> Made:
        """What the function makes of objects, the same by identity, and of values, the same if they are equal."""
        key = function, tuple(map(id, objects)), tuple(values.items())
        if key not in self._made:
            # Kept, as another object may have the identity of one that is gone.
            self._made[key] = objects, function(*objects, **values)
        return self._made[key][1]
