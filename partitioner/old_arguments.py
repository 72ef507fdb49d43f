"""Removed arguments of `plan`, each with its replacement. Kept for one release."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from partitioner.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_STEP = "step=Step({}=...)"
_PARALLELISM = "parallelism=Parallelism({}=...)"
_CONSTRAINTS = "constraints=Constraints({}=...)"
_NEW = {
    **dict.fromkeys(("training", "loss", "optimizer", "input_shape", "source"), _STEP),
    **dict.fromkeys(("example_inputs", "example_targets"), _STEP),
    **dict.fromkeys(("schedule", "recompute", "updates"), _PARALLELISM),
    **dict.fromkeys(("pins", "forbid", "colocate"), _CONSTRAINTS),
    "max_staleness": "parallelism=Parallelism(updates=AsyncUpdates({}=...))",
}


def refusing_old_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which refuses removed arguments and names the replacement.

    Raises:
        UsageError: It is called with a removed argument.
    """

    @wraps(function)
    def call(*values: P.args, **named: P.kwargs) -> T:
        for name in named:
            if name in _NEW:
                raise UsageError(f"plan() takes no {name} any more", help=_NEW[name].format(name))
        return function(*values, **named)

    return call
