"""Carry a plan over to another graph of the same model: its inference, another loss, another optimizer."""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import PlanDocument


def transfer_placement(plan: PlanDocument, graph: OpGraph) -> dict[str, str]:
    """Canonical device of every op of `graph`, a step of the model that `plan` is for.

    An op goes where the plan has an op of this name; else where its colocation group went, else where its layer is, else
    where the ops that feed it, or that it feeds, are. In a colocation group the first op that is known decides, so that a
    variable stays in one place.
    """
    layer_device = {layer.name: layer.device for layer in plan.layers}
    found: dict[str, str] = {}
    group_device: dict[str, str] = {}
    for by_layer in (False, True):
        for op in graph.ops:
            device = layer_device.get(op.layer) if by_layer else plan.placement.get(op.name)
            if op.name not in found and device is not None:
                found[op.name] = device
                if op.colocation_group:
                    group_device.setdefault(op.colocation_group, device)
    for op in graph.ops:
        if op.colocation_group in group_device:
            found[op.name] = group_device[op.colocation_group]
    _spread(graph, found, plan.used_devices[-1])
    return found


def _spread(graph: OpGraph, found: dict[str, str], last: str) -> None:
    """Place what is left beside its neighbours: with its readers, else with what it reads, else with the loss."""
    for op in reversed(graph.ops):
        if op.name not in found:
            readers = [found[r] for name in op.outputs for r in graph.consumers[name] if r in found]
            if readers:
                found[op.name] = readers[0]
    for op in graph.ops:
        if op.name not in found:
            sources = [found[s] for name in op.inputs if (s := graph.tensor[name].producer) in found]
            found[op.name] = sources[-1] if sources else last


def is_planned(plan: PlanDocument, placement: Mapping[str, str]) -> bool:
    """Whether the plan itself names every op of `placement`, with the same device."""
    return all(plan.placement.get(name) == device for name, device in placement.items())
