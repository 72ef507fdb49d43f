"""From a cost graph, devices and constraints to the max-load problem in integers: colocated nodes become one item."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from partitioner.constraints.conflicts import allowed_devices, refuse_contradictions
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.solver.problem import LoadDevice, LoadItem, MaxLoadProblem, SharedValue
from partitioner.ir.requirements import ResolvedConstraint

_LARGEST_TOTAL = 1e11
"""Sum of all costs as integers: ten digits are kept, and sums of sums stay far below 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProblem:
    """A problem and its map to the graph: `item_of[node]` is a node's item; costs are multiples of `unit`."""

    problem: MaxLoadProblem
    item_of: dict[str, int]
    unit: float

    def placement(self, assignment: Sequence[int]) -> dict[str, str]:
        """The placement of an assignment: device name by node id."""
        return {node: self.problem.devices[assignment[item]].name for node, item in self.item_of.items()}


def build_problem(
    graph: CostGraph,
    devices: Sequence[LoadDevice],
    *,
    constraints: Sequence[ResolvedConstraint] = (),
    contiguous: bool = False,
    time_limit_seconds: float = 60.0,
    work_limit: float | None = None,
    seed: int = 0,
) -> BuiltProblem:
    """Formulate the problem: nodes that share a device become an item; edges between forward nodes order items.

    Raises:
        InfeasibleError: Constraints contradict each other, or the needs of a node.
    """
    every_constraint = [*_constraints_of_nodes(graph, devices), *constraints]
    set_of = {node.id: ("node", node.id) if node.group is None else ("group", node.group) for node in graph.nodes}
    refuse_contradictions(set_of, every_constraint, [device.name for device in devices], what="the cost graph")
    joined, allowed = allowed_devices(set_of, every_constraint, len(devices))
    item_of = _item_numbers(graph, {node: joined[group] for node, group in set_of.items()})
    root = {item_of[node]: joined[group] for node, group in set_of.items()}
    unit = _unit(graph)
    num_items = len(set(item_of.values()))
    members: list[list[int]] = [[] for _ in range(num_items)]
    for index, node in enumerate(graph.nodes):
        members[item_of[node.id]].append(index)
    items = []
    everywhere = frozenset(range(len(devices)))
    for number, indices in enumerate(members):
        nodes = [graph.nodes[index] for index in indices]
        items.append(
            LoadItem(
                accelerator_cost=round(math.fsum(node.accelerator_cost for node in nodes) / unit),
                cpu_cost=round(math.fsum(node.cpu_cost for node in nodes) / unit),
                memory_bytes=math.ceil(math.fsum(node.memory_bytes for node in nodes)),
                barred=everywhere - allowed.get(root[number], everywhere),
            )
        )
    costs: dict[tuple[int, ...], list[float]] = {}
    for value in graph.values:
        touched = tuple(sorted({item_of[value.source], *(item_of[target] for target in value.targets)}))
        if len(touched) > 1:
            costs.setdefault(touched, []).append(value.cost)
    values = [SharedValue(items=touched, cost=round(math.fsum(each) / unit)) for touched, each in sorted(costs.items())]
    problem = MaxLoadProblem(
        devices=tuple(devices),
        items=tuple(items),
        values=tuple(value for value in values if value.cost),
        precedes=tuple(sorted(_precedences(graph, item_of))),
        contiguous=contiguous,
        time_limit_seconds=time_limit_seconds,
        work_limit=work_limit,
        seed=seed,
    )
    return BuiltProblem(problem=problem, item_of=item_of, unit=unit)


def _constraints_of_nodes(graph: CostGraph, devices: Sequence[LoadDevice]) -> list[ResolvedConstraint]:
    needs_cpu = tuple(node.id for node in graph.nodes if node.needs_cpu)
    cpus = frozenset(index for index, device in enumerate(devices) if device.is_cpu)
    return (
        [ResolvedConstraint(text="nodes that no accelerator can run", ops=needs_cpu, devices=cpus)] if needs_cpu else []
    )


def _item_numbers(graph: CostGraph, set_of: Mapping[str, Hashable]) -> dict[str, int]:
    """Item number by node id, counted in the order of the file."""
    number: dict[Hashable, int] = {}
    return {node.id: number.setdefault(set_of[node.id], len(number)) for node in graph.nodes}


def _precedences(graph: CostGraph, item_of: dict[str, int]) -> set[tuple[int, int]]:
    """Pairs of different items with an edge between their forward nodes."""
    forward = {node.id for node in graph.nodes if not node.is_backward}
    edges = ((value.source, target) for value in graph.values if value.source in forward for target in value.targets)
    return {(item_of[a], item_of[b]) for a, b in edges if b in forward and item_of[a] != item_of[b]}


def _unit(graph: CostGraph) -> float:
    """The unit of the integers: a power of ten, as fine as 64-bit sums allow."""
    total = math.fsum(node.accelerator_cost + node.cpu_cost for node in graph.nodes)
    total += math.fsum(value.cost for value in graph.values)
    return 10.0 ** -math.floor(math.log10(_LARGEST_TOTAL / total)) if total > 0 else 1.0
