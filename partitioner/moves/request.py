"""From the arguments that a plan keeps of its request back to the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from partitioner.errors import UsageError
from partitioner.options import AsyncUpdates, Constraints, Machine, Parallelism, Request, Search, Step

_HELD: Mapping[str, type] = {
    "machine": Machine,
    "step": Step,
    "parallelism": Parallelism,
    "constraints": Constraints,
    "search": Search,
}
_OF_THE_MODEL_FILE = ("example_inputs", "example_targets")
"""Arguments that JSON cannot say, but the model file or the caller says again."""


def request_of(given: Mapping[str, Any], *, source: str = "") -> Request:
    """The request that has these arguments.

    Args:
        given: Arguments of `plan` by name, as `PlanDocument.request` has them.
        source: Where the model comes from, for the record.

    Raises:
        UsageError: An argument is wrong, or is one that JSON cannot say.
    """
    refuse_unsaid(given)
    values = {name: value for name, value in given.items() if value is not None}
    if values.get("updates") == "async":
        values["updates"] = AsyncUpdates(max_staleness=values.pop("max_staleness", None))
    if source:
        values["source"] = source
    held = {name: kind(**_taken(values, kind)) for name, kind in _HELD.items()}
    return Request(**held, **values)


def refuse_unsaid(given: Mapping[str, Any]) -> None:
    """Refuse arguments that were values in Python which JSON cannot say.

    Raises:
        UsageError: There are some; the error names them.
    """
    unsaid = [name for name, value in given.items() if value is None and name not in _OF_THE_MODEL_FILE]
    if unsaid:
        raise UsageError(
            f"the plan does not say its {' and '.join(unsaid)}: a value in Python, which JSON cannot say",
            help="give it as a name or as a file, and plan again",
        )


def _taken(values: dict[str, Any], kind: type) -> dict[str, Any]:
    """The values that a holder has fields for, taken out of `values`."""
    names = [field.name for field in fields(kind) if field.init and field.name in values]
    return {name: values.pop(name) for name in names}
