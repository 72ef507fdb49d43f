"""Small cost graphs, and what their best placement is by trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from partitioner.cost_graphs.graph import CostGraph, CostNode, CostValue
from partitioner.cost_graphs.solver.problem import DeviceKind, LoadDevice
from partitioner.ir.requirements import Requirement, RequirementKind


def gpu(index: int, capacity_bytes: int | None = None) -> LoadDevice:
    name = f"/job:localhost/replica:0/task:0/device:GPU:{index}"
    return LoadDevice(name=name, kind=DeviceKind.ACCELERATOR, capacity_bytes=capacity_bytes)


def cpu(index: int = 0) -> LoadDevice:
    return LoadDevice(name=f"/job:localhost/replica:0/task:0/device:CPU:{index}", kind=DeviceKind.CPU)


def graph(costs: Sequence[float], edges: Sequence[tuple[int, int]], transfers: Sequence[float] = (), **of_nodes):
    """Nodes `0`, `1`, ... with accelerator costs; CPUs take ten times as long. `of_nodes` are columns of fields."""
    nodes = []
    for index, cost in enumerate(costs):
        own = {name: column[index] for name, column in of_nodes.items()}
        nodes.append(CostNode(**{"id": str(index), "accelerator_cost": cost, "cpu_cost": 10 * cost, **own}))
    targets: dict[int, list[str]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(str(target))
    moved = list(transfers) or [1.0] * len(costs)
    values = [CostValue(source=str(s), targets=tuple(to), cost=moved[s]) for s, to in targets.items()]
    return CostGraph(nodes=tuple(nodes), values=tuple(values))


def max_load(graph: CostGraph, placement: dict[str, LoadDevice]) -> float:
    """The definition: a value that crosses is paid once on the producer's and once on each consumer's accelerator."""
    load: dict[str, float] = {}
    for node in graph.nodes:
        device = placement[node.id]
        load[device.name] = load.get(device.name, 0.0) + (node.cpu_cost if device.is_cpu else node.accelerator_cost)
    for value in graph.values:
        readers = {placement[target] for target in value.targets} - {placement[value.source]}
        for device in readers | ({placement[value.source]} if readers else set()):
            if not device.is_cpu:
                load[device.name] += value.cost
    return max(load.values())


def is_allowed(
    graph: CostGraph, placement: dict[str, LoadDevice], contiguous: bool, asked: Sequence[Requirement] = ()
) -> bool:
    groups: dict[str, set[str]] = {}
    held: dict[LoadDevice, float] = {}
    for node in graph.nodes:
        device = placement[node.id]
        held[device] = held.get(device, 0.0) + node.memory_bytes
        groups.setdefault(node.group or f"alone {node.id}", set()).add(device.name)
        if node.needs_cpu and not device.is_cpu:
            return False
    fits = all(device.capacity_bytes is None or used <= device.capacity_bytes for device, used in held.items())
    together = all(len(names) == 1 for names in groups.values())
    met = all(is_met(one, placement) for one in asked)
    return fits and together and met and (not contiguous or _has_order(graph, placement))


def is_met(asked: Requirement, placement: dict[str, LoadDevice]) -> bool:
    """Whether the nodes that are named, `0|3|4`, are where they may be."""
    names = {placement[node].name for node in asked.pattern.split("|")}
    if asked.kind is RequirementKind.COLOCATE:
        return len(names) == 1
    return names <= set(asked.devices) if asked.kind is RequirementKind.PIN else names.isdisjoint(asked.devices)


def _has_order(graph: CostGraph, placement: dict[str, LoadDevice]) -> bool:
    backward = {node.id for node in graph.nodes if node.is_backward}
    crossing = {
        (placement[value.source].name, placement[target].name)
        for value in graph.values
        for target in value.targets
        if not {value.source, target} & backward
    }
    names = sorted({device.name for device in placement.values()})
    return any(all(o.index(a) <= o.index(b) for a, b in crossing) for o in itertools.permutations(names))


def best_by_trying(
    graph: CostGraph, devices: Sequence[LoadDevice], contiguous: bool, asked: Sequence[Requirement] = ()
) -> float | None:
    """The smallest largest load of all allowed placements; None if none is allowed."""
    return min(_loads_of_all(graph, devices, contiguous, asked), default=None)


def _loads_of_all(
    graph: CostGraph, devices: Sequence[LoadDevice], contiguous: bool, asked: Sequence[Requirement]
) -> Iterator[float]:
    for chosen in itertools.product(devices, repeat=len(graph.nodes)):
        placement = {node.id: device for node, device in zip(graph.nodes, chosen, strict=True)}
        if is_allowed(graph, placement, contiguous, asked):
            yield max_load(graph, placement)


@st.composite
def cost_graphs(draw: st.DrawFn) -> CostGraph:
    """Up to 8 nodes, some backward, some in groups, some for CPUs only."""
    size = draw(st.integers(1, 8))
    edges = [(a, b) for b in range(size) for a in range(b) if draw(st.integers(0, 2)) == 0]
    costs = draw(st.lists(st.integers(0, 12), min_size=size, max_size=size))
    first_backward = draw(st.integers(1, size))
    return graph(
        [float(cost) for cost in costs],
        edges,
        [draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in range(size)],
        cpu_cost=[cost * draw(st.sampled_from([1.0, 2.0, 10.0])) for cost in costs],
        memory_bytes=[float(draw(st.integers(0, 4))) for _ in range(size)],
        group=[draw(st.sampled_from([None, None, None, "a", "b"])) for _ in range(size)],
        needs_cpu=[draw(st.integers(0, 15)) == 0 for _ in range(size)],
        is_backward=[index >= first_backward for index in range(size)],
    )


@st.composite
def requirement_lists(draw: st.DrawFn, graph: CostGraph, devices: Sequence[LoadDevice]) -> tuple[Requirement, ...]:
    """Up to three, of any kind, each about up to three nodes."""
    some_nodes = st.lists(st.sampled_from([node.id for node in graph.nodes]), min_size=1, max_size=3, unique=True)
    made = []
    for kind in draw(st.lists(st.sampled_from(list(RequirementKind)), max_size=3)):
        most = {RequirementKind.PIN: 1, RequirementKind.FORBID: 2, RequirementKind.COLOCATE: 0}[kind]
        names = st.lists(st.sampled_from([d.name for d in devices]), min_size=min(most, 1), max_size=most, unique=True)
        made.append(Requirement(kind=kind, pattern="|".join(draw(some_nodes)), devices=tuple(draw(names))))
    return tuple(made)


@st.composite
def device_lists(draw: st.DrawFn) -> tuple[LoadDevice, ...]:
    """One to three devices, alike or not."""
    capacity = draw(st.sampled_from([None, 6, 10]))
    gpus = [gpu(index, capacity) for index in range(draw(st.integers(0, 3)))]
    if gpus and draw(st.integers(0, 3)) == 0:
        gpus[0] = gpu(0, 5)
    return tuple([*gpus[:2], cpu()] if not gpus or draw(st.booleans()) else gpus)
