"""Simple placements that every plan is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import VariableKind
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.item_bytes import item_bytes


def single_device(coarsening: Coarsening, device: int) -> tuple[int, ...]:
    """Everything on one device."""
    return (device,) * len(coarsening.items)


def equal_layers(coarsening: Coarsening, num_devices: int) -> tuple[int, ...]:
    """Consecutive items, the same number on each device: what people write by hand."""
    return _consecutive([1.0] * len(coarsening.items), num_devices)


def greedy_by_bytes(costed: CostedGraph, coarsening: Coarsening, num_devices: int) -> tuple[int, ...]:
    """Consecutive items, equal parameter bytes on each device: Accelerate's `device_map="balanced"`."""
    graph = costed.graph
    users = {variable: op.name for op in reversed(graph.ops) for variable in op.variables}
    sizes = [0.0] * len(coarsening.items)
    for variable in graph.variables:
        if variable.kind is VariableKind.PARAMETER and variable.name in users:
            sizes[coarsening.item_of[users[variable.name]]] += variable.size_bytes
    return _consecutive(sizes, num_devices)


def balanced_compute(costed: CostedGraph, coarsening: Coarsening, *numbers: int) -> list[tuple[int, ...]]:
    """For numbers of devices, consecutive items, the same seconds on each device: starts for the solver."""
    seconds = [0.0] * len(coarsening.items)
    for op, least in zip(costed.graph.ops, costed.fastest_seconds, strict=True):
        seconds[coarsening.item_of[op.name]] += least
    return [_consecutive(seconds, num_devices) for num_devices in numbers]


def balanced_bytes(costed: CostedGraph, coarsening: Coarsening, *numbers: int) -> list[tuple[int, ...]]:
    """The same for the bytes that items keep: starts where memory is short."""
    kept = item_bytes(costed, coarsening)
    return [_consecutive(kept, num_devices) for num_devices in numbers]


def _consecutive(weights: Sequence[float], num_devices: int) -> tuple[int, ...]:
    """Cut the sequence where the running weight passes each device's share; the middle of an item decides."""
    total = sum(weights) or 1.0
    assignment, done = [], 0.0
    for weight in weights:
        middle = done + weight / 2
        assignment.append(min(int(middle / total * num_devices), num_devices - 1))
        done += weight
    return tuple(assignment)
