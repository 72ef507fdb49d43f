"""A cost graph: nodes with costs on an accelerator and on a CPU, and values with costs of moving them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from partitioner.ir.devices import MOST_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class CostNode:
    """A node of the graph. Costs are in the graph's unit.

    Attributes:
        id: Its name in the file and in the plan's placement.
        description: A readable name; may be empty.
        accelerator_cost: Its cost on an accelerator.
        cpu_cost: Its cost on a CPU.
        needs_cpu: Whether no accelerator can run it.
        memory_bytes: Memory that it holds on its device.
        is_backward: Whether it belongs to the backward pass, where pieces need not be contiguous.
        group: Nodes of the same group share a device; None for a node on its own.
    """

    id: str
    description: str = ""
    accelerator_cost: float
    cpu_cost: float
    needs_cpu: bool = False
    memory_bytes: float = 0.0
    is_backward: bool = False
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostValue:
    """A value that a node makes and others need: `cost` is the load of moving it in or out of an accelerator."""

    source: str
    targets: tuple[str, ...]
    cost: float
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGraph:
    """Nodes and values, with the devices that the file was made for.

    Attributes:
        unit: Unit of all costs: `ms`.
        accelerators: Number of accelerators that the file is for.
        cpus: Number of CPUs that the file is for.
        memory_bytes: Memory of an accelerator for its nodes; None without limit.

    Raises:
        ValueError: Lists every violation: repeated ids, unknown ends, negative or non-finite costs, or a cycle.
    """

    nodes: tuple[CostNode, ...]
    values: tuple[CostValue, ...]
    unit: str = "ms"
    accelerators: int | None = None
    cpus: int | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
            raise ValueError("\n".join([*problems[:8], *more]))


_MOST_COST, _MOST_BYTES = 1e30, 2.0**60
"""More means nothing, and the solver's sums would overflow."""


def _violations(graph: CostGraph) -> Iterator[str]:
    if not graph.nodes:
        yield "there are no nodes"
        return
    for name, count in Counter(node.id for node in graph.nodes).items():
        if count > 1:
            yield f"node {name} is listed {count} times"
    for node in graph.nodes:
        figures = {"CPU cost": node.cpu_cost, "accelerator cost": node.accelerator_cost, "size": node.memory_bytes}
        for what, figure in figures.items():
            if not 0 <= figure < math.inf:
                yield f"node {node.id} has the {what} {figure}; expected a number of at least 0"
    for value in graph.values:
        if not 0 <= value.cost < math.inf:
            yield f"the value of node {value.source} has the cost {value.cost}; expected a number of at least 0"
        if not 0 <= value.size_bytes < math.inf:
            yield f"the value of node {value.source} has the size {value.size_bytes}; expected a number of at least 0"
    costs = [cost for node in graph.nodes for cost in (node.cpu_cost, node.accelerator_cost)]
    if (most := max([*costs, *(value.cost for value in graph.values)])) > _MOST_COST and most < math.inf:
        yield f"there is a cost of {most:g}; expected at most {_MOST_COST:g}"
    held = sum(node.memory_bytes for node in graph.nodes) + sum(value.size_bytes for value in graph.values)
    if _MOST_BYTES < held < math.inf:
        yield f"nodes and values have {held:g} bytes together; expected at most {_MOST_BYTES:g}"
    ids = {node.id for node in graph.nodes}
    strangers = [(v.source, t) for v in graph.values for t in v.targets if not {v.source, t} <= ids]
    for source, target in strangers:
        yield f"the edge {source} -> {target} names the unknown node {target if source in ids else source}"
    if graph.memory_bytes is not None and not graph.memory_bytes > 0:
        yield f"an accelerator holds {graph.memory_bytes} bytes; expected more than 0"
    for what, count in (("accelerators", graph.accelerators), ("CPUs", graph.cpus)):
        if count is not None and not 0 <= count <= MOST_DEVICES:
            yield f"the file is for {count} {what}; expected 0 to {MOST_DEVICES}"
    if not strangers:
        yield from _cycle(graph)


def _cycle(graph: CostGraph) -> Iterator[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for value in graph.values:
        for target in value.targets:
            sorter.add(target, value.source)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = error.args[1]
        shown = cycle if len(cycle) <= 8 else [*cycle[:4], "...", *cycle[-3:]]
        yield f"{len(cycle) - 1} nodes wait for each other in a cycle: {' -> '.join(shown)}"
