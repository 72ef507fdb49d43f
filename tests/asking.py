"""Arguments of `partitioner.plan` by their names alone, put into the option values that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from partitioner.options import AsyncUpdates, Constraints, Parallelism, Step

_HOLDERS = {"step": Step, "parallelism": Parallelism, "constraints": Constraints}


def asked(**arguments: Any) -> Mapping[str, Any]:
    """Keywords for `plan` or `auto_place`: `asked(schedule="gpipe", loss="mse")`.

    `max_staleness` stands for asynchronous updates with that bound.
    """
    if (most := arguments.pop("max_staleness", None)) is not None:
        arguments["updates"] = AsyncUpdates(max_staleness=most)
    for name, holder in _HOLDERS.items():
        own = {field.name for field in fields(holder) if field.init}
        given = {key: arguments.pop(key) for key in list(arguments) if key in own}
        if given:
            arguments[name] = holder(**given)
    return arguments
