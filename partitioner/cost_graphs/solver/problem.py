"""The max-load problem: which device runs what, so that the busiest device has as little to do as possible.

Costs are integers, in a unit so fine that rounding to it does not matter; capacities are bytes and rounded down, what
items hold is rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    """What a device pays for: accelerators pay for what they move in and out, CPUs for computing only."""

    ACCELERATOR = "accelerator"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDevice:
    """A device. `capacity_bytes` is what its items may hold together; None without limit."""

    name: str
    kind: DeviceKind
    capacity_bytes: int | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it pays for computing only."""
        return self.kind is DeviceKind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadItem:
    """Nodes that share a device: the unit of placement. `barred` are the indices of devices that it may not be on."""

    accelerator_cost: int
    cpu_cost: int
    memory_bytes: int = 0
    barred: frozenset[int] = frozenset()

    def cost_on(self, device: LoadDevice) -> int:
        """What it takes on a device."""
        return self.cpu_cost if device.is_cpu else self.accelerator_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedValue:
    """A value, by the items that make or need it (two or more, rising)."""

    items: tuple[int, ...]
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadProblem:
    """Put each item on a device so that the largest load is as small as possible.

    This is the objective of J. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
    NeurIPS 2020, as their published workloads (github.com/msr-fiddle/dnn-partitioning) have it. The load of a CPU is
    what its items take there. The load of an accelerator is what its items take there and, for each value of which it
    has some of the items but not all, the value's cost: once to bring it in or out, however many of its items need it.

    Contiguous: the devices can be put in an order in which no item comes before one that precedes it. So items that
    precede each other both ways must share a device; the pieces are what a pipeline runs one after the other.

    Attributes:
        precedes: Pairs of items (a, b): a must not come after b. Only looked at if `contiguous`; it has no cycle.
        contiguous: Whether pieces must be contiguous.
        time_limit_seconds: Wall seconds for the search.
        work_limit: What each of the search's threads may do, in CP-SAT's deterministic units; None takes what a fast
            and quiet machine does within the time limit.
        seed: Same seed, same answer, if the work rather than the clock ends the search.

    Raises:
        ValueError: Listing violations.
    """

    devices: tuple[LoadDevice, ...]
    items: tuple[LoadItem, ...]
    values: tuple[SharedValue, ...] = ()
    precedes: tuple[tuple[int, int], ...] = ()
    contiguous: bool = False
    time_limit_seconds: float = 60.0
    work_limit: float | None = None
    seed: int = 0

    @property
    def accelerators(self) -> frozenset[int]:
        """Indices of the devices that are no CPUs."""
        return frozenset(index for index, device in enumerate(self.devices) if not device.is_cpu)

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            raise ValueError("the max-load problem is malformed:\n  " + "\n  ".join(problems[:20]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadAnswer:
    """What is known so far: the best assignment (item -> device), its largest load, and what no assignment is below.

    `status` is `optimal`, `feasible`, `infeasible` or `time-limit` (no assignment yet); `method` names what found it.
    """

    status: str
    lower_bound: int
    assignment: tuple[int, ...] | None = None
    max_load: int | None = None
    method: str = ""


def _violations(problem: MaxLoadProblem) -> Iterator[str]:
    num_items = len(problem.items)
    if not problem.devices:
        yield "no devices"
    for index, item in enumerate(problem.items):
        if min(item.accelerator_cost, item.cpu_cost, item.memory_bytes) < 0:
            yield f"item {index} has a negative cost or size"
        if item.barred and not item.barred <= set(range(len(problem.devices))):
            yield f"item {index} is barred from unknown devices"
    for index, value in enumerate(problem.values):
        if len(value.items) < 2 or list(value.items) != sorted(set(value.items)):
            yield f"value {index} needs two or more items that rise, not {value.items}"
        elif not 0 <= value.items[0] <= value.items[-1] < num_items:
            yield f"value {index} names an unknown item"
        if value.cost <= 0:
            yield f"value {index} costs {value.cost}"
    if any(not (0 <= a < num_items and 0 <= b < num_items and a != b) for a, b in problem.precedes):
        yield "an item that precedes itself or is unknown"
