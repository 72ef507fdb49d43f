"""Changes to a request: which of them make a plan possible, and what each would gain. Each one is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from partitioner.deadline import Deadline
from partitioner.errors import PartitionError
from partitioner.ir.plan import WhatIf
from partitioner.spelling import in_words

T = TypeVar("T")

GIB = 2**30
MOST_MORE_DEVICES = 4


def changes_that_help(
    changes: Iterable[tuple[str, T]], is_feasible: Callable[[T], bool], deadline: Deadline
) -> Iterator[str]:
    """The changes, in words, under which there is a plan; those that come after the deadline are not tried."""
    for text, changed in changes:
        if deadline.is_over:
            break
        if is_feasible(changed):
            yield text


def fewest_more_devices(
    request: T,
    with_another_device: Callable[[T], T],
    is_feasible: Callable[[T], bool],
    deadline: Deadline,
    at_least: float = 1,
) -> int | None:
    """How many more devices there must be for a plan; None if not even `MOST_MORE_DEVICES` are enough.

    Args:
        request: The request for which there is no plan.
        with_another_device: Adds a device to a request.
        is_feasible: Whether there is a plan for a request.
        deadline: Ends the search.
        at_least: Fewer devices than this are known not to be enough.
    """
    for count in range(1, MOST_MORE_DEVICES + 1):
        if deadline.is_over:
            break
        request = with_another_device(request)
        if count >= at_least and is_feasible(request):
            return count
    return None


def gains(
    changes: Iterable[tuple[str, T]], before: float, unit: str, objective_of: Callable[[T], float]
) -> tuple[WhatIf, ...]:
    """The objective after each change; a change for which planning fails carries the reason.

    Args:
        changes: Better machines, in words and as requests.
        before: The objective of the plan as it is. That plan is possible on a better machine too, so nothing is worse.
        unit: Of the objective.
        objective_of: Plans a request. What it raises as `PartitionError` is the reason.
    """
    rows = []
    for change, changed in changes:
        after, reason = None, ""
        try:
            after = min(before, objective_of(changed))
        except PartitionError as error:
            reason = in_words(error.as_written[0])
        rows.append(WhatIf(change=change, before=before, after=after, unit=unit, reason=reason))
    return tuple(rows)
