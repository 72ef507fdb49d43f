"""The attributes of an op that a cost formula can read."""

from __future__ import annotations

from typing import Any

from cost_models.specs import AttributeValue


def readable_attributes(node: Any) -> dict[str, AttributeValue]:
    """Of a NodeDef: numbers, flags, short texts and lists of integers."""
    found: dict[str, AttributeValue] = {}
    for key, value in node.attr.items():
        kind = value.WhichOneof("value")
        if key.startswith("_"):
            continue
        if kind in ("i", "f", "b"):
            found[key] = getattr(value, kind)
        elif kind == "s" and len(value.s) <= 200:
            found[key] = value.s.decode(errors="replace")
        elif kind == "list" and value.list.i:
            found[key] = tuple(value.list.i)
    return dict(sorted(found.items()))
