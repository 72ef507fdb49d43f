"""The solver in its own process: hand-known optima, and agreement with brute force on small problems."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitioner.ir.json import from_json, to_json
from partitioner.ir.problem import (
    Item,
    PlacementProblem,
    ProblemDevice,
    ProblemLink,
    Solution,
    Task,
    Transfer,
)
from partitioner.planner.placement.solve.bounds import bounds
from partitioner.solver_process.client import answers


def solve(problem: PlacementProblem) -> Solution:
    """Solve in the solver's process, as another test may have imported TensorFlow into this one."""
    with closing(answers("partitioner.planner.placement.solve.answer", to_json(problem), 300)) as lines:
        return from_json(b"".join(lines), Solution)


def placed(solution: Solution) -> tuple[int, ...]:
    assert solution.assignment is not None
    return solution.assignment


def link(latency_ns: int = 0, picoseconds_per_byte: int = 1000) -> ProblemLink:
    return ProblemLink(latency_ns=latency_ns, picoseconds_per_byte=picoseconds_per_byte)


def problem(
    capacities: list[int],
    items: list[tuple[int, int]],
    transfers: Sequence[tuple[int, int, int]] = (),
    links: dict[tuple[int, int], ProblemLink] | None = None,
    slowdown: tuple[int, ...] | None = None,
    allowed: dict[int, tuple[int, ...]] | None = None,
    **options,
) -> PlacementProblem:
    """One task per item. `items` are (ns on the first device, bytes); `transfers` (source, target, bytes)."""
    num = len(capacities)
    slowdown = slowdown or (1,) * num
    return PlacementProblem(
        devices=tuple(ProblemDevice(name=f"d{i}", capacity_bytes=c) for i, c in enumerate(capacities)),
        links=tuple(tuple((links or {}).get((a, b), link()) for b in range(num)) for a in range(num)),
        items=tuple(
            Item(name=f"i{i}", memory_bytes=m, allowed_devices=(allowed or {}).get(i, ()))
            for i, (_, m) in enumerate(items)
        ),
        tasks=tuple(Task(item=i, duration_ns=tuple(ns * s for s in slowdown)) for i, (ns, _) in enumerate(items)),
        transfers=tuple(Transfer(source=a, targets=(b,), size_bytes=size) for a, b, size in transfers),
        **options,
    )


CHAIN = [(0, 1, 7), (1, 2, 5), (2, 3, 3), (3, 4, 4)]


def test_a_chain_that_fits_stays_on_one_device() -> None:
    solution = solve(problem([50, 50], [(10, 10)] * 5, CHAIN))
    assert solution.status == "optimal"
    assert solution.makespan_ns == solution.lower_bound_ns == solution.shortest_ns == 50
    assert len(set(placed(solution))) == 1


def test_memory_forces_the_cheapest_cut() -> None:
    # 40 of 50 bytes fit: cuts after item 0, 1, 2, 3 cost 7, 5, 3, 4 ns.
    solution = solve(problem([40, 40], [(10, 10)] * 5, CHAIN))
    assert solution.status == "optimal"
    assert (solution.makespan_ns, solution.lower_bound_ns) == (53, 53)
    assert solution.assignment == (0, 0, 0, 1, 1)


def test_the_cheapest_cut_that_fits() -> None:
    # With 20 bytes a device, five items need three devices and two cuts: only after 1 and 3 (9 ns),
    # after 0 and 2 (10 ns), or after 1 and 2 (8 ns) leave at most two items each.
    solution = solve(problem([20, 20, 20], [(10, 10)] * 5, CHAIN))
    assert solution.status == "optimal"
    assert solution.makespan_ns == 58
    assert solution.assignment == (0, 0, 1, 2, 2)


def test_two_towers_take_one_device_each() -> None:
    # Items 0-1 and 2-3 are the towers, item 4 joins them: 20 + 2 ns of transfer + 5.
    towers = problem([9, 9], [(10, 1)] * 4 + [(5, 1)], [(0, 1, 6), (2, 3, 6), (1, 4, 2), (3, 4, 2)])
    solution = solve(towers)
    assert (solution.status, solution.makespan_ns) == ("optimal", 27)
    a, b, c, d, _ = placed(solution)
    assert a == b != c == d


def test_unequal_devices_share_the_work_by_speed() -> None:
    # Six independent tasks of 10 ns, or 20 ns on the second device: four and two.
    solution = solve(problem([9, 9], [(10, 1)] * 6, slowdown=(1, 2)))
    assert (solution.status, solution.makespan_ns) == ("optimal", 40)
    assert sorted(placed(solution)) == [0, 0, 0, 0, 1, 1]


def test_unequal_links_choose_the_near_device() -> None:
    # A cut is forced; only between devices 0 and 2 is it cheap, and only in that direction.
    far, near = link(latency_ns=30), link(latency_ns=2)
    links = dict.fromkeys(itertools.permutations(range(3), 2), far) | {(0, 2): near}
    solution = solve(problem([1, 1, 1], [(10, 1), (10, 1)], [(0, 1, 0)], links=links))
    assert (solution.status, solution.makespan_ns, solution.assignment) == ("optimal", 22, (0, 2))


def test_every_nanosecond_of_a_dearer_link_counts() -> None:
    # The reader must leave the source's device and may choose none: 10 + 3 + 10.
    links = {(0, 1): link(latency_ns=3), (1, 0): link(latency_ns=2)}
    solution = solve(problem([1, 1], [(10, 1), (10, 1)], [(0, 1, 0)], links=links, allowed={0: (0,), 1: (1,)}))
    assert (solution.status, solution.makespan_ns, solution.lower_bound_ns) == ("optimal", 23, 23)
    # Both directions are open: the cheap one is taken, unless device 0 is too slow for the longer task.
    solution = solve(problem([1, 1], [(10, 1), (10, 1)], [(0, 1, 0)], links=links))
    assert (solution.makespan_ns, solution.assignment) == (22, (1, 0))
    uneven = problem([1, 1], [(10, 1), (20, 1)], [(0, 1, 0)], links=links, slowdown=(2, 1))
    solution = solve(uneven)
    assert (solution.makespan_ns, solution.lower_bound_ns, solution.assignment) == (43, 43, (0, 1))


def test_allowed_devices_are_respected() -> None:
    solution = solve(problem([9, 9], [(10, 1)] * 3, [(0, 1, 4), (1, 2, 4)], allowed={1: (1,)}))
    assert (solution.status, solution.makespan_ns, solution.assignment) == ("optimal", 30, (1, 1, 1))
    solution = solve(problem([9, 9], [(10, 1)] * 2, [(0, 1, 4)], allowed={0: (0,), 1: (1,)}))
    assert (solution.status, solution.makespan_ns, solution.assignment) == ("optimal", 24, (0, 1))


def test_every_device_is_used_when_asked() -> None:
    chain = problem([9, 9], [(10, 1)] * 3, [(0, 1, 4), (1, 2, 1)], use_every_device=True)
    solution = solve(chain)
    assert (solution.status, solution.makespan_ns, solution.assignment) == ("optimal", 31, (0, 0, 1))
    assert solve(problem([9, 9], [(10, 1)], use_every_device=True)).status == "infeasible"


def test_a_tensor_is_sent_once_to_each_device() -> None:
    # Both readers wait 3 ns for the same value and run side by side on two other devices.
    shared = PlacementProblem(
        devices=tuple(ProblemDevice(name=f"d{i}", capacity_bytes=1) for i in range(3)),
        links=((link(),) * 3,) * 3,
        items=tuple(Item(name=f"i{i}", memory_bytes=1) for i in range(3)),
        tasks=tuple(Task(item=i, duration_ns=(10, 10, 10)) for i in range(3)),
        transfers=(Transfer(source=0, targets=(1, 2), size_bytes=3),),
    )
    assert solve(shared).makespan_ns == 23


def test_balance_trades_the_allowed_time_for_memory() -> None:
    # 50 ns without a cut; after items 0, 1, 2, 3 a cut costs 7, 5, 3, 4 ns and the largest memory
    # is 40, 30, 30, 40 bytes. 59 permille allow 2 ns, 60 permille 3 ns, 100 permille 5 ns.
    def balanced(permille: int) -> Solution:
        return solve(problem([50, 50], [(10, 10)] * 5, CHAIN, balance_permille=permille))

    assert balanced(59).assignment == (0, 0, 0, 0, 0)
    assert (balanced(60).makespan_ns, balanced(60).assignment) == (53, (0, 0, 0, 1, 1))
    solution = balanced(100)
    assert (solution.status, solution.shortest_ns, solution.lower_bound_ns) == ("optimal", 50, 50)
    assert solution.makespan_ns in (53, 55)


def test_balance_is_relative_to_capacity() -> None:
    # Four items of 10 bytes over 20 and 40 bytes: two each would fill the small device, one and three leave
    # a quarter of either free.
    solution = solve(problem([20, 40], [(0, 10)] * 4, balance_permille=10))
    assert sorted(placed(solution)) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("asked", "status", "makespan_ns"),
    [
        (problem([0], [(10, 0), (5, 0)], [(0, 1, 99)]), "optimal", 15),
        (problem([5], []), "optimal", 0),
        (problem([5], [(10, 6)]), "infeasible", None),
        (problem([6, 6], [(10, 4)] * 3), "infeasible", None),
        (problem([5, 5], [], use_every_device=True), "infeasible", None),
        (problem([0, 3], [(0, 3), (0, 0)], balance_permille=5), "optimal", 0),
    ],
    ids=["one-device", "nothing", "too-big-item", "pigeons", "nothing-everywhere", "no-time"],
)
def test_edges(asked: PlacementProblem, status: str, makespan_ns: int | None) -> None:
    solution = solve(asked)
    assert (solution.status, solution.makespan_ns) == (status, makespan_ns)


def test_items_without_tasks_still_take_memory() -> None:
    items = tuple(Item(name=f"i{i}", memory_bytes=4) for i in range(2))
    devices = tuple(ProblemDevice(name=f"d{i}", capacity_bytes=7) for i in range(2))
    bare = PlacementProblem(devices=devices, links=((link(),) * 2,) * 2, items=items, tasks=())
    solution = solve(bare)
    assert (solution.status, solution.makespan_ns, solution.assignment) == ("optimal", 0, (0, 1))


def towers(num_items: int, num_devices: int, **options) -> PlacementProblem:
    """Two towers of different layers, forward and backward, each half too large for one device."""
    layers = range(num_items)
    work = [40_000 + 37_123 * layer % 61_001 for layer in layers]
    size = [5_000 + 23_011 * layer % 19_001 for layer in layers]
    transfers = [Transfer(source=i, targets=(num_items + i,), size_bytes=size[i]) for i in layers]
    for i in range(num_items - 2):
        transfers.append(Transfer(source=i, targets=(i + 2,), size_bytes=size[i]))
        transfers.append(Transfer(source=num_items + i + 2, targets=(num_items + i,), size_bytes=size[i]))
    capacity = sum(size) * 13 // (10 * num_devices)
    return PlacementProblem(
        devices=tuple(ProblemDevice(name=f"d{i}", capacity_bytes=capacity) for i in range(num_devices)),
        links=((link(latency_ns=3),) * num_devices,) * num_devices,
        items=tuple(Item(name=f"i{i}", memory_bytes=size[i]) for i in layers),
        tasks=tuple(Task(item=i, duration_ns=(factor * work[i],) * num_devices) for factor in (1, 2) for i in layers),
        transfers=tuple(transfers),
        **options,
    )


def run_in_a_fresh_process(source: str, asked: PlacementProblem) -> str:
    """Run a program that finds `asked` as the variable `problem`; what it prints."""
    head = """
        import sys
        from partitioner.ir.json import from_json, to_json
        from partitioner.ir.problem import PlacementProblem
        from partitioner.planner.placement.solve import search
        problem = from_json(sys.stdin.buffer.read(), PlacementProblem)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(head) + dedent(source)],
        input=to_json(asked).encode(),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_problem_has_the_same_answer_on_every_run(seed: int) -> None:
    # So little work that it cannot be proved, so much time that the clock cannot stop it.
    stopped = """
        from dataclasses import replace
        search.DETERMINISTIC_PER_SECOND = 0.002
        print(to_json(replace(search.solve_in_process(problem), seconds=0.0)))
    """
    asked = towers(90, 4, seed=seed, time_limit_seconds=120.0, balance_permille=20)
    first, second = (run_in_a_fresh_process(stopped, asked) for _ in range(2))
    assert from_json(first, Solution).status == "feasible"
    assert first == second


@pytest.mark.parametrize("objective", ["minimise_makespan", "minimise_fullest_device"])
def test_cp_sat_accepts_the_warm_start_as_it_is(objective: str) -> None:
    # The devices are renamed: the model keeps only assignments that open device 0 first.
    accepted = f"""
        from ortools.sat.python import cp_model
        from partitioner.planner.placement.solve.bounds import bounds
        from partitioner.planner.placement.solve.evaluate import schedule_assignment
        from partitioner.planner.placement.solve.model import PlacementModel
        start = schedule_assignment(problem, problem.hints[0])
        model = PlacementModel(problem, bounds(problem), start.makespan_ns)
        model.{objective}()
        model.hint(start)
        solver = cp_model.CpSolver()
        solver.parameters.stop_after_first_solution = True
        solver.parameters.num_workers = 1
        solver.solve(model.cp)
        print(solver.solution_info(), solver.value(model.makespan) == start.makespan_ns)
    """
    asked = towers(12, 3, hints=((2, 1) * 6,), use_every_device=False)
    asked = replace(asked, devices=tuple(replace(d, capacity_bytes=10**9) for d in asked.devices))
    assert run_in_a_fresh_process(accepted, asked) == "complete_hint True\n"


def shortest_by_hand(asked: PlacementProblem) -> int | None:
    """The optimum over all assignments and, for each, all orders in which devices can take their tasks."""
    best: int | None = None
    for assignment in itertools.product(range(len(asked.devices)), repeat=len(asked.items)):
        held = [0] * len(asked.devices)
        for item, device in zip(asked.items, assignment, strict=True):
            held[device] += item.memory_bytes
        if (
            all(h <= d.capacity_bytes for h, d in zip(held, asked.devices, strict=True))
            and all(
                not i.allowed_devices or d in i.allowed_devices for i, d in zip(asked.items, assignment, strict=True)
            )
            and (not asked.use_every_device or set(assignment) == set(range(len(asked.devices))))
        ):
            ends: dict[int, int] = {}
            best = _append_every_order(asked, assignment, ends, [0] * len(asked.devices), best)
    return best


def _append_every_order(
    asked: PlacementProblem,
    assignment: tuple[int, ...],
    ends: dict[int, int],
    free: list[int],
    best: int | None,
) -> int | None:
    if best is not None and max(ends.values(), default=0) >= best:
        return best
    if len(ends) == len(asked.tasks):
        return max(ends.values(), default=0)
    for index, task in enumerate(asked.tasks):
        incoming = [t for t in asked.transfers if index in t.targets]
        if index in ends or any(t.source not in ends for t in incoming):
            continue
        device = assignment[task.item]
        arrivals = [0]
        for transfer in incoming:
            source = assignment[asked.tasks[transfer.source].item]
            wire = asked.links[source][device]
            moving = wire.latency_ns + -(-transfer.size_bytes * wire.picoseconds_per_byte // 1000)
            arrivals.append(ends[transfer.source] + (moving if source != device else 0))
        duration = task.duration_ns[device]
        end = max(*arrivals, free[device] if duration else 0, 0) + duration
        later = list(free)
        if duration:
            later[device] = end
        best = _append_every_order(asked, assignment, ends | {index: end}, later, best)
    return best


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    num_devices = draw(st.integers(1, 3))
    num_items = draw(st.integers(1, 8 if num_devices < 3 else 6))
    num_tasks = draw(st.integers(0, 7))
    number = st.integers(0, 9)
    device = st.integers(0, num_devices - 1)
    wires = st.builds(
        ProblemLink, latency_ns=st.integers(0, 4), picoseconds_per_byte=st.sampled_from([0, 1, 500, 2000])
    )
    one_wire = draw(wires)
    equal_links, equal_devices = draw(st.booleans()), draw(st.booleans())
    durations = (
        number.map(lambda ns: (ns,) * num_devices)
        if equal_devices
        else st.tuples(*[number for _ in range(num_devices)])
    )
    capacity = draw(st.integers(3, 16))
    transfers = []
    for source in range(num_tasks - 1):
        targets = draw(st.lists(st.integers(source + 1, num_tasks - 1), max_size=2, unique=True))
        transfers.append(Transfer(source=source, targets=tuple(targets), size_bytes=draw(st.integers(0, 6))))
    allowed = st.one_of(st.just(()), st.lists(device, min_size=1, unique=True).map(tuple))
    return PlacementProblem(
        devices=tuple(
            ProblemDevice(name=f"d{i}", capacity_bytes=capacity if equal_devices else draw(st.integers(0, 16)))
            for i in range(num_devices)
        ),
        links=tuple(
            tuple(one_wire if equal_links else draw(wires) for _ in range(num_devices)) for _ in range(num_devices)
        ),
        items=tuple(
            Item(name=f"i{i}", memory_bytes=draw(st.integers(0, 6)), allowed_devices=draw(allowed))
            for i in range(num_items)
        ),
        tasks=tuple(
            Task(item=draw(st.integers(0, num_items - 1)), duration_ns=draw(durations)) for _ in range(num_tasks)
        ),
        transfers=tuple(transfers),
        use_every_device=draw(st.booleans()),
        balance_permille=draw(st.sampled_from([0, 0, 200])),
        hints=tuple(draw(st.lists(st.tuples(*[device] * num_items), max_size=2))),
        seed=draw(st.integers(0, 5)),
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=problems())
def test_agrees_with_brute_force(asked: PlacementProblem) -> None:
    expected = shortest_by_hand(asked)
    solution = solve(asked)
    if expected is None:
        assert solution.status == "infeasible"
        return
    assert solution.status == "optimal"
    assert solution.shortest_ns == solution.lower_bound_ns == expected
    assert solution.makespan_ns is not None
    assert expected <= solution.makespan_ns <= expected + expected * asked.balance_permille // 1000
    limits = bounds(asked)
    assert limits is not None
    assert limits.lower_ns <= expected <= limits.upper_ns
