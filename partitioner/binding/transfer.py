"""Carry a plan over to another graph of the same model: its inference, another loss, another optimizer."""

from __future__ import annotations

from dataclasses import replace

from partitioner.errors import UsageError
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import PlanDocument
from partitioner.planner.document.assemble import forward_boxes


def transfer_placement(plan: PlanDocument, graph: OpGraph) -> dict[str, str]:
    """Canonical device of every op of `graph`, a step of the model that `plan` is for.

    An op goes where the plan has an op of this name; else where its colocation group went, else where its
    layer is, else where the ops that feed it, or that it feeds, are. In a colocation group the first op that
    is known decides, so that a variable stays in one place.
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
    _spread(graph, found, plan.devices_of(0)[-1])
    return found


def _spread(graph: OpGraph, found: dict[str, str], last: str) -> None:
    """Place what is left: with its readers, else with what it reads, else with the loss."""
    for op in reversed(graph.ops):
        if op.name not in found:
            readers = [found[r] for name in op.outputs for r in graph.consumers[name] if r in found]
            if readers:
                found[op.name] = readers[0]
    for op in graph.ops:
        if op.name not in found:
            sources = [found[s] for name in op.inputs if (s := graph.tensor[name].producer) in found]
            found[op.name] = sources[-1] if sources else last


def rebase(plan: PlanDocument, graph: OpGraph) -> PlanDocument:
    """The plan in the names of `graph`, a step of the same kind and fingerprint with other layer names.

    Keras numbers unnamed layers anew whenever a process builds a model again. Layers keep their order, so the
    n-th layer of the graph is the n-th of the plan.

    Raises:
        UsageError: The graph belongs to another model.
    """
    if graph.fingerprint != plan.model.fingerprint:
        raise UsageError(
            "the plan is for another model",
            notes=[
                f"plan:  {plan.model.name}, fingerprint {plan.model.fingerprint}, "
                f"{plan.model.num_parameters} parameters",
                f"model: {graph.name}, fingerprint {graph.fingerprint}, {graph.num_parameters} parameters",
            ],
            help="make a plan for this model: partitioner.plan(model, devices=[...])",
        )
    names = [box for box in forward_boxes(graph) if box in {layer.path for layer in graph.layers}]
    planned = [layer for layer in plan.layers if layer.class_name not in ("InputLayer", "Loss")]
    if names == [layer.name for layer in planned]:
        return plan
    device = {name: layer.device for name, layer in zip(names, planned, strict=True)}
    layers = tuple(replace(layer, name=name) for name, layer in zip(names, planned, strict=True))
    placement = {op.name: device[op.layer] for op in graph.ops if op.layer in device}
    return replace(plan, layers=layers, placement=placement)
