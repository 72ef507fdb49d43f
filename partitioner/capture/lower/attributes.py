"""The attributes of an op that a cost formula can read."""

from __future__ import annotations

from typing import Any

from cost_models.specs import AttributeValue


def readable_attributes(node: Any) -> dict[str, AttributeValue]:
    """The attributes of a NodeDef that are numbers, flags, short texts or lists of integers."""
    attributes: dict[str, AttributeValue] = {}
    for key, value in node.attr.items():
        kind = value.WhichOneof("value")
        if key.startswith("_"):
            continue
        if kind in ("i", "f", "b"):
            attributes[key] = getattr(value, kind)
        elif kind == "s" and len(value.s) <= 200:
            attributes[key] = value.s.decode(errors="replace")
        elif kind == "list" and value.list.i:
            attributes[key] = tuple(value.list.i)
    return dict(sorted(attributes.items()))
