"""The placement problem: integers only, so that feasible solutions fit and every run gives the same result.

Durations are nanoseconds and rounded up, capacities are bytes and rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDevice:
    """A device: its name and the bytes that items may take on it."""

    name: str
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Ops that must share a device: the unit of placement. `allowed_devices` are indices; empty means any."""

    name: str
    memory_bytes: int
    allowed_devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part of an item that runs without interruption. `duration_ns[d]` is its time on device d."""

    item: int
    duration_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A value that task `source` makes and tasks `targets` need; sent once to each device that needs it."""

    source: int
    targets: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemLink:
    """Time of a transfer: `latency_ns + size_bytes * picoseconds_per_byte / 1000`, rounded up."""

    latency_ns: int
    picoseconds_per_byte: int

    def duration_ns(self, size_bytes: int) -> int:
        """Nanoseconds to move `size_bytes`."""
        return self.latency_ns + -(-size_bytes * self.picoseconds_per_byte // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Assign each item to a device so that the last task ends as early as possible.

    A device runs one task at a time. A task starts when all its transfers have arrived; a transfer between
    tasks on one device takes no time, and transfers overlap with computation and with each other.

    Attributes:
        links: `links[a][b]` is the link from device a to device b; the diagonal is ignored.
        use_every_device: Whether each device must hold at least one item.
        balance_permille: Among placements within this tolerance of the shortest makespan, prefer the placement
            with the smallest peak memory; 0 keeps the shortest as it is.
        hints: Assignments (item -> device index) as warm starts; infeasible hints are ignored.

    Raises:
        ValueError: Listing every violation.
    """

    devices: tuple[ProblemDevice, ...]
    links: tuple[tuple[ProblemLink, ...], ...]
    items: tuple[Item, ...]
    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...] = ()
    use_every_device: bool = False
    balance_permille: int = 0
    hints: tuple[tuple[int, ...], ...] = ()
    time_limit_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            raise ValueError("the placement problem is malformed:\n  " + "\n  ".join(problems[:20]))


def _violations(problem: PlacementProblem) -> Iterable[str]:
    num_devices, num_items, num_tasks = len(problem.devices), len(problem.items), len(problem.tasks)
    if num_devices == 0:
        yield "no devices"
    if [len(row) for row in problem.links] != [num_devices] * num_devices:
        yield f"links must be {num_devices} x {num_devices}"
    for device in problem.devices:
        if device.capacity_bytes < 0:
            yield f"device {device.name!r} has a negative capacity: {device.capacity_bytes} bytes"
    for item in problem.items:
        if item.memory_bytes < 0:
            yield f"item {item.name!r} has negative memory: {item.memory_bytes} bytes"
        if any(not 0 <= d < num_devices for d in item.allowed_devices):
            yield f"item {item.name!r} allows unknown devices: {item.allowed_devices}"
    for index, task in enumerate(problem.tasks):
        if not 0 <= task.item < num_items:
            yield f"task {index} belongs to the unknown item {task.item}"
        if len(task.duration_ns) != num_devices or any(ns < 0 for ns in task.duration_ns):
            yield f"task {index} needs {num_devices} durations >= 0, has {task.duration_ns}"
    ends: dict[int, set[int]] = {}
    for transfer in problem.transfers:
        tasks = (transfer.source, *transfer.targets)
        if any(not 0 <= t < num_tasks for t in tasks) or transfer.size_bytes < 0:
            yield f"transfer {transfer} names an unknown task or a negative size"
            return
        for target in transfer.targets:
            ends.setdefault(target, set()).add(transfer.source)
    try:
        TopologicalSorter(ends).prepare()
    except CycleError as error:
        yield f"tasks wait for each other in a cycle: {error.args[1]}"
    for hint in problem.hints:
        if len(hint) != num_items or any(not 0 <= d < num_devices for d in hint):
            yield f"a hint must name a device for each of the {num_items} items"
    if problem.time_limit_seconds <= 0:
        yield f"time_limit_seconds is {problem.time_limit_seconds}, expected more than 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The solver's answer to a problem.

    Attributes:
        status: `optimal` (proved), `feasible`, `infeasible` (proved) or `time-limit` (nothing found,
            nothing proved).
        assignment: Device index per item; None without a solution.
        makespan_ns: End of the last task under `assignment`.
        shortest_ns: Shortest makespan found before balancing memory; equal to `makespan_ns` without it.
        lower_bound_ns: No assignment can end earlier.
    """

    status: str
    assignment: tuple[int, ...] | None = None
    makespan_ns: int | None = None
    shortest_ns: int | None = None
    lower_bound_ns: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in ("optimal", "feasible", "infeasible", "time-limit"):
            raise ValueError(f"unknown solver status {self.status!r}")
        if (self.status in ("optimal", "feasible")) != (self.assignment is not None):
            raise ValueError(f"status {self.status!r} does not go with assignment {self.assignment}")
