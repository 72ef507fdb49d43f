"""Resolve requirements for a cost graph: the nodes that each pattern matches."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.constraints.match import resolved
from partitioner.cost_graphs.graph import CostGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.requirements import Requirement, ResolvedConstraint


def resolve_node_constraints(
    graph: CostGraph, requirements: Sequence[Requirement], devices: Sequence[DeviceName]
) -> tuple[ResolvedConstraint, ...]:
    """The constraints for the nodes of a cost graph: a pattern must match the whole of a node's id or description.

    Raises:
        UsageError: As for `resolve_constraints`.
    """
    names = {node.id: tuple(filter(None, (node.id, node.description))) for node in graph.nodes}
    near_names = dict.fromkeys(name for of_node in names.values() for name in reversed(of_node))
    return resolved(requirements, names, list(near_names), [[device] for device in devices], "no node")
