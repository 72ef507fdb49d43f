"""How many trips a loop makes, from its condition and from how its body changes its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_COPIES = frozenset(("Identity", "Squeeze", "Cast", "StopGradient", "PreventGradient"))
_COMPARISONS = frozenset(("Less", "LessEqual", "Greater", "GreaterEqual"))

Value = Callable[[Any], float | None]
"""Gives the constant value of a tensor; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Trips:
    """How many trips a loop makes, and whether that is certain."""

    count: int
    certain: bool


def origin(tensor: Any) -> Any:
    """The tensor that a tensor is a copy of."""
    while tensor.op.type in _COPIES:
        tensor = tensor.op.inputs[0]
    return tensor


def step(argument: Any, result: Any, value: Value) -> float | None:
    """What a loop body adds to `argument` in each trip to make `result`; None where it does something else.

    Both are tensors of the body's graph. It is 0 for any variable that is passed on unchanged, number or not.
    """
    made = origin(result)
    if made.name == argument.name:
        return 0
    if made.op.type not in ("Add", "AddV2", "Sub"):
        return None
    first, second = map(origin, made.op.inputs)
    if first.name == argument.name and (amount := value(second)) is not None:
        return -amount if made.op.type == "Sub" else amount
    if second.name == argument.name and made.op.type != "Sub":
        return value(first)
    return None


def count_trips(condition: Any, moving: Mapping[str, tuple[float, float]], value: Value, longest: int) -> Trips:
    """The number of trips.

    The condition may compare two numbers that are constant or change by the same amount in each trip; each such
    comparison bounds the trips, and the least bound counts. If the condition has other parts, the loop may end sooner,
    so the number is not certain. Without such a comparison the loop is assumed to walk the longest of its lists.

    Args:
        condition: The tensor that says whether there is another trip.
        moving: Start and step of the loop variables for which both are known, by the name of the tensor in the
            condition's graph.
        value: Gives constant values in the condition's graph.
        longest: Length of the longest list among the loop's variables; 1 if there is none.
    """
    bounds = [_bound(part, moving, value) for part in _conjunction(condition)]
    trips = [bound for bound in bounds if bound is not None]
    return Trips(min(trips, default=longest), certain=bool(trips) and len(trips) == len(bounds))


def _conjunction(condition: Any) -> list[Any]:
    made = origin(condition)
    if made.op.type == "LogicalAnd":
        return [part for operand in made.op.inputs for part in _conjunction(operand)]
    return [made]


def _bound(comparison: Any, moving: Mapping[str, tuple[float, float]], value: Value) -> int | None:
    """Trips until a comparison no longer holds; None if that is unknown or never happens."""
    kind = comparison.op.type
    if kind not in _COMPARISONS:
        return None
    left, right = (_start_and_step(origin(tensor), moving, value) for tensor in comparison.op.inputs)
    if left is None or right is None:
        return None
    if kind.startswith("Greater"):
        left, right = right, left
    # The left side is behind by `distance`, and comes nearer by `gain` in each trip.
    distance, gain = right[0] - left[0], left[1] - right[1]
    holds_when_equal = kind.endswith("Equal")
    if distance < 0 or (distance == 0 and not holds_when_equal):
        return 0
    if gain <= 0:
        return None
    return math.floor(distance / gain) + 1 if holds_when_equal else math.ceil(distance / gain)


def _start_and_step(tensor: Any, moving: Mapping[str, tuple[float, float]], value: Value) -> tuple[float, float] | None:
    if tensor.name in moving:
        return moving[tensor.name]
    constant = value(tensor)
    return None if constant is None else (constant, 0)
