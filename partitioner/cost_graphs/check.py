"""Check a plan against its cost graph from the definition of the problem: feasibility, objective, and the bound."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from partitioner.cost_graphs.document import CostGraphPlan
from partitioner.cost_graphs.graph import CostGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.plan import SolverInfo
from partitioner.ir.requirements import Requirement, RequirementKind

_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a check, in the graph's unit.

    Attributes:
        solver: Objective and bound in the plan.
        problems: Errors in the plan; empty if there are none.
        objective: The largest load, computed anew.
        simple_bound: A lower bound of any placement, by total work and by the most expensive group.
        num_moves: Number of other placements, each with a group moved to another device, that were compared with the
            plan's bound.
        schema: Names the JSON of this result.
    """

    solver: SolverInfo
    problems: tuple[str, ...]
    objective: float
    simple_bound: float
    num_moves: int
    schema: str = "partition-check/1"

    def to_text(self) -> str:
        """The results in sentences, and a line for each error."""
        if self.problems:
            return "the plan is not what it says\n" + "".join(f"- {problem}\n" for problem in self.problems)
        solver = self.solver
        return (
            f"the plan is allowed, and its largest load is {self.objective:.9g} {solver.unit} as it says\n"
            f"its lower bound {solver.lower_bound:.9g} {solver.unit} (gap {100 * solver.gap:.4g} %) is not "
            f"contradicted: a simple bound is {self.simple_bound:.9g} {solver.unit}, and none of {self.num_moves:,} "
            "placements beside it is below\n"
        )


def check_plan(plan: CostGraphPlan, graph: CostGraph) -> CheckResult:
    """Check the figures of a plan against its placement and its cost graph.

    Args:
        plan: The plan.
        graph: Its cost graph, read anew.
    """
    devices = {device.name: device.memory_bytes or 0 for device in plan.devices}
    nodes = {node.id for node in graph.nodes}
    problems = []
    if missing := sorted(nodes - plan.placement.keys()):
        problems.append(f"{len(missing)} nodes are not placed: {', '.join(missing[:5])}")
    if strangers := sorted(plan.placement.keys() - nodes):
        problems.append(f"{len(strangers)} nodes are not of the cost graph: {', '.join(strangers[:5])}")
    if problems:
        return CheckResult(solver=plan.solver, problems=tuple(problems), objective=0.0, simple_bound=0.0, num_moves=0)
    contiguous = plan.contiguous
    requirements = plan.requirements
    problems += _not_allowed(graph, plan.placement, devices, requirements, contiguous=contiguous)
    objective = max(_loads(graph, plan.placement, devices).values())
    solver = plan.solver
    if abs(solver.objective - objective) > _TOLERANCE * objective:
        problems.append(f"the plan says its largest load is {solver.objective:.9g}, it is {objective:.9g}")
    simple = _simple_bound(graph, devices)
    if solver.lower_bound > objective * (1 + _TOLERANCE):
        problems.append(f"the lower bound {solver.lower_bound:.9g} is above the largest load {objective:.9g}")
    if simple > objective * (1 + _TOLERANCE):
        problems.append(f"no placement can be below {simple:.9g}, but the plan's is {objective:.9g}")
    gap = (solver.objective - solver.lower_bound) / solver.objective if solver.objective else 0.0
    if abs(gap - solver.gap) > _TOLERANCE:
        problems.append(f"the plan says its gap is {solver.gap:.9g}, its objective and bound make it {gap:.9g}")
    if solver.status == "optimal" and gap > _TOLERANCE:
        problems.append(f"the plan says it is optimal with a gap of {gap:.9g}")
    num_moves = 0
    for moved in _moves(graph, plan.placement, devices):
        num_moves += 1
        load = max(_loads(graph, moved, devices).values())
        is_below = load < solver.lower_bound * (1 - _TOLERANCE)
        if is_below and not _not_allowed(graph, moved, devices, requirements, contiguous=contiguous):
            problems.append(f"the lower bound {solver.lower_bound:.9g} is wrong: moving a group gives {load:.9g}")
            break
    return CheckResult(
        solver=plan.solver, problems=tuple(problems), objective=objective, simple_bound=simple, num_moves=num_moves
    )


def _is_cpu(device: str) -> bool:
    return DeviceName.parse(device).type == "CPU"


def _loads(graph: CostGraph, placement: Mapping[str, str], devices: Mapping[str, int]) -> dict[str, float]:
    load = dict.fromkeys(devices, 0.0)
    cpus = {device for device in devices if _is_cpu(device)}
    for node in graph.nodes:
        device = placement[node.id]
        load[device] += node.cpu_cost if device in cpus else node.accelerator_cost
    for value in graph.values:
        home = placement[value.source]
        others = {placement[target] for target in value.targets} - {home}
        # A value leaves its producer's device once, and enters each other device of its consumers once.
        for device in (others | {home} if others else others) - cpus:
            load[device] += value.cost
    return load


def _not_allowed(
    graph: CostGraph,
    placement: Mapping[str, str],
    devices: Mapping[str, int],
    requirements: Sequence[Requirement],
    *,
    contiguous: bool,
) -> list[str]:
    problems = list(_not_met(graph, placement, requirements))
    held: dict[str, float] = defaultdict(float)
    homes: dict[str, set[str]] = defaultdict(set)
    for node in graph.nodes:
        device = placement[node.id]
        held[device] += node.memory_bytes
        if node.group is not None:
            homes[node.group].add(device)
        if node.needs_cpu and not _is_cpu(device):
            problems.append(f"node {node.id} needs a CPU, but is on {device}")
    problems += [f"the nodes of group {group} are on {len(on)} devices" for group, on in homes.items() if len(on) > 1]
    for device, size in held.items():
        # Devices without a limit have 0.
        if devices[device] and size > devices[device]:
            problems.append(f"{device} would hold {size:.0f} bytes of {devices[device]}")
    if contiguous:
        backward = {node.id for node in graph.nodes if node.is_backward}
        pieces: nx.DiGraph = nx.DiGraph()
        for value in graph.values:
            for target in value.targets:
                if not {value.source, target} & backward and placement[value.source] != placement[target]:
                    pieces.add_edge(placement[value.source], placement[target])
        if not nx.is_directed_acyclic_graph(pieces):
            cycle = " -> ".join(edge[0] for edge in nx.find_cycle(pieces))
            problems.append(f"the pieces are not contiguous: values go round {cycle}")
    return problems


def _not_met(graph: CostGraph, placement: Mapping[str, str], requirements: Sequence[Requirement]) -> Iterator[str]:
    for requirement in requirements:
        matched = [
            node.id for node in graph.nodes for name in (node.id, node.description) if _matches(requirement, name)
        ]
        homes = {node: placement[node] for node in matched}
        if not homes:
            yield f"{requirement.text}: matches no node"
        if requirement.kind is RequirementKind.COLOCATE and len(set(homes.values())) > 1:
            yield f"{requirement.text}: the nodes are on {len(set(homes.values()))} devices"
        for node, device in homes.items():
            if (requirement.kind is RequirementKind.PIN and device not in requirement.devices) or (
                requirement.kind is RequirementKind.FORBID and device in requirement.devices
            ):
                yield f"{requirement.text}: node {node} is on {device}"
                break


def _matches(requirement: Requirement, name: str) -> bool:
    return bool(name) and re.fullmatch(requirement.pattern, name) is not None


def _groups(graph: CostGraph) -> list[list[str]]:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in graph.nodes:
        groups[("group", node.group) if node.group is not None else ("node", node.id)].append(node.id)
    return list(groups.values())


def _simple_bound(graph: CostGraph, devices: Mapping[str, int]) -> float:
    """The larger of the most expensive group on its best device, and all work on fastest devices, spread evenly."""
    node_of = {node.id: node for node in graph.nodes}
    kinds = {_is_cpu(device) for device in devices}

    def least(names: list[str]) -> float:
        nodes = [node_of[name] for name in names]
        options = [sum(node.cpu_cost for node in nodes)] if True in kinds else []
        if False in kinds and not any(node.needs_cpu for node in nodes):
            options.append(sum(node.accelerator_cost for node in nodes))
        return min(options, default=0.0)

    cheapest = [least(group) for group in _groups(graph)]
    return max(max(cheapest), sum(cheapest) / len(devices))


def _moves(graph: CostGraph, placement: Mapping[str, str], devices: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Placements with a group of the busiest device moved to another device."""
    load = _loads(graph, placement, devices)
    busiest = max(load, key=lambda device: load[device])
    for group in _groups(graph):
        if placement[group[0]] == busiest:
            for device in devices:
                if device != busiest:
                    yield {**placement, **dict.fromkeys(group, device)}
