"""The max-load problem: assign items to devices so that the largest load is minimal.

Costs are integers, in a unit so fine that rounding does not matter. Capacities are bytes, rounded down; the memory of
items is rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    """Kinds of devices: accelerators pay for computing and for moving values in and out, CPUs only for computing."""

    ACCELERATOR = "accelerator"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDevice:
    """A device. `capacity_bytes` is the memory for its items; None without limit."""

    name: str
    kind: DeviceKind
    capacity_bytes: int | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, which pays only for computing."""
        return self.kind is DeviceKind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadItem:
    """Nodes that share a device: the unit of placement. `barred` are the indices of forbidden devices."""

    accelerator_cost: int
    cpu_cost: int
    memory_bytes: int = 0
    barred: frozenset[int] = frozenset()

    def cost_on(self, device: LoadDevice) -> int:
        """Its cost on a device."""
        return self.cpu_cost if device.is_cpu else self.accelerator_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedValue:
    """A value, with the items that make or need it (two or more, rising)."""

    items: tuple[int, ...]
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadProblem:
    """Put each item on a device so that the largest load is as small as possible.

    This is the objective of J. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators",
    NeurIPS 2020, as in their published workloads (github.com/msr-fiddle/dnn-partitioning). The load of a CPU is the
    cost of its items. The load of an accelerator is the cost of its items plus the cost of each value of which it has
    some of the items but not all: paid once, however many of its items need the value.

    Contiguous: the devices have an order in which no item comes before its predecessors. So items that precede each
    other must share a device; a pipeline runs the pieces in this order.

    Attributes:
        precedes: Pairs of items (a, b): a must not come after b. Used only if `contiguous`; it has no cycle.
        contiguous: Whether pieces must be contiguous.
        time_limit_seconds: Wall seconds for the search.
        work_limit: Work of each search thread, in CP-SAT's deterministic units; by default the work of a fast and quiet
            machine within the time limit.
        seed: Same seed, same answer, if the work rather than the clock ends the search.

    Raises:
        ValueError: Lists violations.
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
        """Indices of the devices that are not CPUs."""
        return frozenset(index for index, device in enumerate(self.devices) if not device.is_cpu)

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            raise ValueError("the max-load problem is malformed:\n  " + "\n  ".join(problems[:20]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLoadAnswer:
    """An answer: the best assignment so far (item -> device), its largest load, and a lower bound.

    `status` is `optimal`, `feasible`, `infeasible` or `time-limit` (no assignment yet); `method` names its origin.
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
