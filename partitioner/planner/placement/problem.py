"""Turn a coarsened graph into the integers the solver works on.

Tasks are the parts of an item that run without interruption: its forward, backward and update ops, each split into what
other items wait for and what nobody waits for. (The gradient of a weight can wait while the gradient of the
input is needed at once.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import networkx as nx

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.problem import Item, PlacementProblem, ProblemDevice, ProblemLink, Task, Transfer
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.item_bytes import item_bytes

Label = tuple[int, Phase, bool, int]
"""Names a task: item, phase, whether another item waits for it, depth."""


def placement_problem(
    costed: CostedGraph,
    coarsening: Coarsening,
    *,
    capacities_bytes: Sequence[int],
    use_every_device: bool = False,
    balance_permille: int = 0,
    hints: Sequence[Sequence[int]] = (),
    time_limit_seconds: float = 60.0,
    seed: int = 0,
) -> PlacementProblem:
    """The solver's view of a coarsened graph: integers, durations rounded up, capacities as given.

    Args:
        costed: The graph with its costs.
        coarsening: Its items.
        capacities_bytes: Bytes that the items of each device may take together.
        use_every_device: Whether each device must get an item.
        balance_permille: See `PlacementProblem`.
        hints: Placements (device index per item) as warm starts.
        time_limit_seconds: For the solver.
        seed: For the solver.
    """
    tasks, task_of = _tasks(costed, coarsening)
    memory = item_bytes(costed, coarsening)
    topology = costed.topology
    count = len(topology.devices)
    items = tuple(
        Item(name=name, memory_bytes=size, allowed_devices=tuple(sorted(allowed)) if len(allowed) < count else ())
        for name, size, allowed in zip(coarsening.names, memory, coarsening.allowed, strict=True)
    )
    return PlacementProblem(
        devices=tuple(
            ProblemDevice(name=placed.name, capacity_bytes=capacity)
            for placed, capacity in zip(topology.devices, capacities_bytes, strict=True)
        ),
        links=tuple(tuple(_problem_link(costed, a, b) for b in range(count)) for a in range(count)),
        items=items,
        tasks=tasks,
        transfers=_transfers(costed, task_of),
        use_every_device=use_every_device,
        balance_permille=balance_permille,
        hints=tuple(dict.fromkeys(tuple(hint) for hint in hints)),
        time_limit_seconds=time_limit_seconds,
        seed=seed,
    )


def _problem_link(costed: CostedGraph, a: int, b: int) -> ProblemLink:
    link = costed.topology.link(a, b)
    return ProblemLink(
        latency_ns=math.ceil(link.latency_seconds * 1e9),
        picoseconds_per_byte=math.ceil(1e12 / link.bandwidth_bytes_per_second),
    )


def _tasks(costed: CostedGraph, coarsening: Coarsening) -> tuple[tuple[Task, ...], dict[str, int]]:
    graph = costed.graph
    labels = _task_labels(costed, coarsening)
    durations: dict[Label, list[float]] = {}
    for op, seconds in zip(graph.ops, costed.seconds, strict=True):
        total = durations.setdefault(labels[op.name], [0.0] * len(seconds))
        for device, value in enumerate(seconds):
            total[device] += value
    index = {label: number for number, label in enumerate(durations)}
    tasks = tuple(
        Task(item=label[0], duration_ns=tuple(math.ceil(value * 1e9) for value in total))
        for label, total in durations.items()
    )
    return tasks, {name: index[label] for name, label in labels.items()}


def _task_labels(costed: CostedGraph, coarsening: Coarsening) -> dict[str, Label]:
    """Task of each op; its depth only splits what would be a cycle."""
    graph = costed.graph
    awaited = _awaited(costed, coarsening)
    labels: dict[str, Label] = {
        op.name: (coarsening.item_of[op.name], op.phase, op.name in awaited, 0) for op in graph.ops
    }
    quotient = nx.DiGraph()
    for op in graph.ops:
        quotient.add_node(labels[op.name])
        for source in graph.sources[op.name]:
            if labels[source] != labels[op.name]:
                quotient.add_edge(labels[source], labels[op.name])
    tangled = {label for part in nx.strongly_connected_components(quotient) if len(part) > 1 for label in part}
    if not tangled:
        return labels
    depth: dict[str, int] = {}
    for op in graph.ops:
        depth[op.name] = max((depth[s] + (labels[s] != labels[op.name]) for s in graph.sources[op.name]), default=0)
    return {
        name: (label[0], label[1], label[2], depth[name] + 1) if label in tangled else label
        for name, label in labels.items()
    }


def _awaited(costed: CostedGraph, coarsening: Coarsening) -> set[str]:
    """Ops that another item waits for, directly or through ops of the same item and phase."""
    graph, item_of = costed.graph, coarsening.item_of
    awaited: set[str] = set()
    for op in reversed(graph.ops):
        for source in graph.sources[op.name]:
            same_part = item_of[source] == item_of[op.name] and graph.op[source].phase is op.phase
            if item_of[source] != item_of[op.name] or (same_part and op.name in awaited):
                awaited.add(source)
    return awaited


def _transfers(costed: CostedGraph, task_of: Mapping[str, int]) -> tuple[Transfer, ...]:
    """One transfer per source and set of targets: of several, the largest arrives last, so only that counts."""
    graph = costed.graph
    sizes: dict[tuple[int, tuple[int, ...]], int] = {}
    for op in graph.ops:
        source = task_of[op.name]
        for name in op.outputs:
            readers = sorted({task_of[reader] for reader in graph.consumers[name]} - {source})
            if readers:
                key = (source, tuple(readers))
                sizes[key] = max(sizes.get(key, 0), graph.tensor[name].size_bytes)
        for before in op.control_inputs:
            if task_of[before] != source:
                key = (task_of[before], (source,))
                sizes.setdefault(key, 0)
    return tuple(Transfer(source=source, targets=targets, size_bytes=size) for (source, targets), size in sizes.items())
