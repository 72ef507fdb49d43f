"""Refuse what a strategy cannot do with the parts of a model, and with the constraints on them."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from partitioner.constraints.conflicts import refuse_contradictions
from partitioner.errors import InfeasibleError, UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Strategy
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsening import Coarsening
from partitioner.spelling import argument


def refuse_impossible(
    costed: CostedGraph, coarsening: Coarsening, strategy: Strategy, constraints: Sequence[ResolvedConstraint]
) -> None:
    """Refuse constraints that contradict the strategy (all ops on one device, or some on each), and too few parts.

    Raises:
        InfeasibleError: Naming the constraints.
        UsageError: A layer split has fewer parts than devices.
    """
    graph, devices = costed.graph, [placed.name for placed in costed.topology.devices]
    if strategy is Strategy.SINGLE:
        whole = ResolvedConstraint(text="strategy single", ops=tuple(coarsening.item_of), together=True)
        refuse_contradictions(
            coarsening.item_of, [whole, *constraints], devices, title=lambda name: graph.op[name].title
        )
    if strategy is not Strategy.LAYER_SPLIT:
        return
    num_items = len(coarsening.items)
    if num_items < len(devices):
        raise UsageError(
            f"the model has {num_items} parts that can be placed, fewer than {len(devices)} devices",
            help=f"give at most {num_items} devices",
        )
    if idle := _unmatched(coarsening, devices):
        raise InfeasibleError(
            f"the strategy layer-split uses every device, but these parts cannot use {', '.join(idle)}",
            notes=[constraint.text for constraint in constraints],
            help=f"leave out one of them, name fewer devices, or {argument('strategy', 'auto')}",
        )


def _unmatched(coarsening: Coarsening, devices: Sequence[str]) -> list[str]:
    """Devices left without an item in a maximum matching."""
    offers = nx.Graph(((item, f"{d}") for item, places in enumerate(coarsening.allowed) for d in places))
    used = nx.bipartite.maximum_matching(offers, top_nodes=[node for node in offers if isinstance(node, int)])
    return [short_name(name) for index, name in enumerate(devices) if f"{index}" not in used]
