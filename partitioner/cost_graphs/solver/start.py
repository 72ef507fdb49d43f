"""A first assignment without a solver: intervals of an order, or the largest items first."""

from __future__ import annotations

from partitioner.cost_graphs.solver.contiguous.chain import best_chain
from partitioner.cost_graphs.solver.loads import violations
from partitioner.cost_graphs.solver.problem import LoadItem, MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import without_cycles
from partitioner.cost_graphs.solver.reduce.even import LARGE, cut_evenly, linear_orders


def first_fit(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    """An allowed assignment by two simple methods: intervals of an order, else devices with enough room; or None."""
    acyclic = without_cycles(problem)
    is_large = len(acyclic.problem.items) > LARGE
    chain = _even_pieces(acyclic.problem) if is_large else best_chain(acyclic.problem)
    if chain is not None:
        return acyclic.lift(chain)
    packed = _packed(problem)
    return packed if packed is not None and not any(violations(problem, packed)) else None


def _even_pieces(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    return next(filter(None, (cut_evenly(problem, order) for order in linear_orders(problem))), None)


def _packed(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    room = [device.capacity_bytes for device in problem.devices]
    load = [0] * len(problem.devices)
    assignment = [0] * len(problem.items)
    for index in sorted(range(len(problem.items)), key=lambda index: _hardest_first(problem.items[index])):
        item = problem.items[index]
        fits = [d for d in range(len(room)) if d not in item.barred and _has_room(room[d], item.memory_bytes)]
        if not fits:
            return None
        device = min(fits, key=lambda d: load[d] + item.cost_on(problem.devices[d]))
        left = room[device]
        room[device] = None if left is None else left - item.memory_bytes
        load[device] += item.cost_on(problem.devices[device])
        assignment[index] = device
    return tuple(assignment)


def _hardest_first(item: LoadItem) -> tuple[int, int]:
    return -len(item.barred), -item.memory_bytes


def _has_room(room: int | None, size_bytes: int) -> bool:
    return room is None or room >= size_bytes
