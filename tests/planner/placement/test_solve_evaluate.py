"""The pure half of the solver: schedules of an assignment, bounds, interchangeable devices, warm starts."""

from __future__ import annotations

import pytest

from partitioner.ir.problem import Item, PlacementProblem, ProblemDevice, ProblemLink, Task, Transfer
from partitioner.planner.placement.solve.bounds import bounds
from partitioner.planner.placement.solve.evaluate import schedule_assignment, violations
from partitioner.planner.placement.solve.start import best_start
from partitioner.planner.placement.solve.symmetry import canonical, interchangeable_devices

WIRE = ProblemLink(latency_ns=2, picoseconds_per_byte=500)
SLOW = ProblemLink(latency_ns=100, picoseconds_per_byte=0)


def diamond(**options) -> PlacementProblem:
    """0 feeds 1 and 2, which feed 3; 10, 20, 30, 10 ns; a cut costs 2 + 3 / 2, rounded up to 4 ns."""
    defaults = {
        "devices": tuple(ProblemDevice(name=f"d{i}", capacity_bytes=9) for i in range(3)),
        "links": ((WIRE,) * 3,) * 3,
        "items": tuple(Item(name=f"i{i}", memory_bytes=3) for i in range(4)),
        "tasks": tuple(Task(item=i, duration_ns=(ns,) * 3) for i, ns in enumerate((10, 20, 30, 10))),
        "transfers": (
            Transfer(source=0, targets=(1, 2), size_bytes=3),
            Transfer(source=1, targets=(3,), size_bytes=3),
            Transfer(source=2, targets=(3,), size_bytes=3),
        ),
    }
    return PlacementProblem(**(defaults | options))


@pytest.mark.parametrize(
    ("assignment", "starts_ns", "makespan_ns"),
    [
        ((0, 0, 0, 0), (0, 40, 10, 60), 70),  # 2 before 1: equal starts, longer path to the end
        ((0, 1, 0, 0), (0, 14, 10, 40), 50),  # 1 is back at 14 + 20 + 4 = 38, before 2 ends
        ((0, 0, 1, 0), (0, 10, 14, 48), 58),
        ((0, 1, 2, 0), (0, 14, 14, 48), 58),
    ],
)
def test_a_schedule_by_hand(assignment: tuple[int, ...], starts_ns: tuple[int, ...], makespan_ns: int) -> None:
    scheduled = schedule_assignment(diamond(), assignment)
    assert (scheduled.starts_ns, scheduled.makespan_ns) == (starts_ns, makespan_ns)


def test_priority_decides_the_order() -> None:
    scheduled = schedule_assignment(diamond(), (0, 0, 0, 1), priority=(0, 1, 2, 3))
    assert (scheduled.starts_ns, scheduled.makespan_ns) == ((0, 10, 30, 64), 74)


def test_the_largest_of_several_transfers_counts_once() -> None:
    twice = diamond(
        transfers=(
            Transfer(source=0, targets=(1, 1), size_bytes=10),
            Transfer(source=0, targets=(1,), size_bytes=2),
        )
    )
    assert schedule_assignment(twice, (0, 1, 2, 2)).starts_ns[1] == 10 + 2 + 5


def test_a_task_of_no_duration_takes_no_place() -> None:
    instant = diamond(tasks=(Task(item=0, duration_ns=(8, 8, 8)), Task(item=1, duration_ns=(0, 0, 0))), transfers=())
    assert schedule_assignment(instant, (0, 0, 0, 0)).makespan_ns == 8


def test_the_direction_of_a_link_counts() -> None:
    oneway = diamond(links=((WIRE, WIRE, WIRE), (SLOW, WIRE, WIRE), (WIRE, WIRE, WIRE)))
    assert schedule_assignment(oneway, (0, 0, 0, 1)).makespan_ns == 74
    assert schedule_assignment(oneway, (1, 1, 1, 0)).makespan_ns == 170


@pytest.mark.parametrize(
    ("options", "assignment", "expected"),
    [
        ({}, (0, 0, 0, 0), ["device 'd0' would hold 12 bytes of 9"]),
        ({}, (0, 0, 1, 1), []),
        ({"use_every_device": True}, (0, 0, 1, 1), ["only 2 of 3 devices are used"]),
        ({}, (0, 0, 1), ["3 devices for 4 items"]),
        ({}, (0, 0, 1, 3), ["item 'i3' may not be on device 3"]),
        (
            {"items": (Item(name="x", memory_bytes=0, allowed_devices=(1,)),), "tasks": (), "transfers": ()},
            (0,),
            ["item 'x' may not be on device 0"],
        ),
    ],
)
def test_violations(options: dict, assignment: tuple[int, ...], expected: list[str]) -> None:
    assert list(violations(diamond(**options), assignment)) == expected


def test_bounds_by_hand() -> None:
    limits = bounds(diamond())
    assert limits is not None
    assert (limits.heads_ns, limits.tails_ns) == ((0, 10, 10, 40), (40, 10, 10, 0))
    assert (limits.lower_ns, limits.upper_ns) == (50, 70 + 4 * 4)
    assert limits.longest_path == (0, 2, 3)


def test_bounds_use_the_fastest_allowed_device_and_forced_cuts() -> None:
    forced = diamond(
        items=(
            Item(name="a", memory_bytes=1, allowed_devices=(1, 2)),
            Item(name="b", memory_bytes=1, allowed_devices=(0,)),
        ),
        tasks=(Task(item=0, duration_ns=(1, 9, 7)), Task(item=1, duration_ns=(5, 1, 1))),
        transfers=(Transfer(source=0, targets=(1,), size_bytes=3),),
    )
    limits = bounds(forced)
    assert limits is not None
    assert limits.lower_ns == 7 + 4 + 5
    assert bounds(diamond(items=(Item(name="big", memory_bytes=10),) * 4)) is None


def test_work_bounds_what_paths_do_not() -> None:
    independent = bounds(diamond(transfers=()))
    assert independent is not None
    assert independent.lower_ns == 30
    shared = bounds(diamond(tasks=tuple(Task(item=i, duration_ns=(7, 9, 9)) for i in range(4)), transfers=()))
    assert shared is not None
    assert shared.lower_ns == 10  # 4 x 7 ns over three devices, rounded up


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, [(0, 1, 2)]),
        ({"devices": tuple(ProblemDevice(name=f"d{c}", capacity_bytes=c) for c in (9, 8, 9))}, [(0, 2)]),
        ({"tasks": (Task(item=0, duration_ns=(1, 1, 2)),), "transfers": ()}, [(0, 1)]),
        ({"items": (Item(name="i", memory_bytes=1, allowed_devices=(1, 2)),) * 4}, [(1, 2)]),
        ({"links": ((WIRE, WIRE, SLOW), (WIRE,) * 3, (WIRE,) * 3)}, []),
    ],
    ids=["all", "capacity", "duration", "allowed", "one-way link"],
)
def test_interchangeable_devices(options: dict, groups: list[tuple[int, ...]]) -> None:
    assert interchangeable_devices(diamond(**options)) == groups


def test_devices_of_a_group_are_named_in_order_of_appearance() -> None:
    assert canonical((3, 1, 3, 0, 2), [(0, 2, 3)]) == (0, 1, 0, 2, 3)
    assert canonical((3, 1), [(0, 3)]) == (0, 1)


def test_the_best_feasible_hint_is_the_start() -> None:
    start = best_start(diamond(hints=((0, 0, 0, 0), (0, 1, 2, 0), (1, 0, 1, 1))))
    assert start is not None
    assert (start.assignment, start.makespan_ns) == ((1, 0, 1, 1), 50)


def test_a_start_is_found_without_hints() -> None:
    # Devices filled up: (0, 0, 0, 1), 74 ns. At most a third of the bytes each, as far as that goes: 58 ns.
    start = best_start(diamond())
    assert start is not None
    assert (start.assignment, start.makespan_ns) == ((0, 1, 2, 0), 58)
    assert best_start(diamond(items=(Item(name="big", memory_bytes=10),) * 4)) is None
