"""JSON both ways for every type here: msgspec checks types on the way in, the types check themselves."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any, *, indent: int = 0) -> str:
    """Render a value with sorted keys; `indent` spaces per level, or one line for 0.

    Floats are Python's shortest round-trip text, so that equal values give equal text.
    """
    data = msgspec.json.encode(value, order="sorted")
    return (msgspec.json.format(data, indent=indent) if indent else data).decode()


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Read a value of type `kind`.

    Raises:
        msgspec.ValidationError: The text is not JSON, or has a field of the wrong type (its path is named),
            or the value violates what its type promises.
    """
    return decoded(text, kind)


def decoded(text: str | bytes, kind: Any = Any) -> Any:
    """A JSON text as values of type `kind`, by default as lists and dictionaries.

    Raises:
        msgspec.DecodeError: The text is not JSON, is nested more deeply than Python can follow, or has a wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
