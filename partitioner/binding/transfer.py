"""Transfer a plan to another graph of the same model: its inference, another loss, another optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import PlanDocument
from partitioner.planner.document.assemble import forward_boxes


def transfer_placement(plan: PlanDocument, graph: OpGraph) -> dict[str, str]:
    """Canonical device of every op of `graph`, a step of the model that `plan` is for.

    An op gets the device of the plan's op of this name; else that of its colocation group, else that of its layer,
    else that of its readers or of its inputs. In a colocation group the first op with a device decides, so that a
    variable stays on a single device. An op that no GPU can run decides nothing: it goes to the host in the end.
    """
    layer_device = {layer.name: layer.device for layer in plan.layers}
    placement: dict[str, str] = {}
    group_device: dict[str, str] = {}
    for by_layer in (False, True):
        for op in graph.ops:
            device = layer_device.get(op.layer) if by_layer else plan.placement.get(op.name)
            if op.name not in placement and device is not None and not op.host_only:
                placement[op.name] = device
                if op.colocation_group:
                    group_device.setdefault(op.colocation_group, device)
    for op in graph.ops:
        if op.colocation_group in group_device:
            placement[op.name] = group_device[op.colocation_group]
    _spread(graph, placement, plan.devices_of(0)[-1])
    hosted = {op.name: plan.placement.get(op.name, _stand_by(placement[op.name])) for op in graph.ops if op.host_only}
    return placement | hosted


def _stand_by(device: str) -> str:
    return DeviceName.parse(device).stand_by.canonical


def _spread(graph: OpGraph, placement: dict[str, str], last: str) -> None:
    """Place the remaining ops: with their readers, else with their inputs, else with the loss."""
    for op in reversed(graph.ops):
        if op.name not in placement:
            readers = [placement[r] for name in op.outputs for r in graph.consumers[name] if r in placement]
            if readers:
                placement[op.name] = readers[0]
    for op in graph.ops:
        if op.name not in placement:
            sources = [placement[s] for name in op.inputs if (s := graph.tensor[name].producer) in placement]
            placement[op.name] = sources[-1] if sources else last


def rebase(plan: PlanDocument, graph: OpGraph) -> PlanDocument:
    """The plan in the names of `graph`, a step of the same kind and fingerprint with other layer names.

    Keras numbers unnamed layers anew whenever a process builds a model again. Layers keep their order, so the
    n-th layer of the graph is the n-th of the plan.

    Raises:
        UsageError: The graph belongs to another model.
    """
    if plan.model.fingerprint not in (graph.fingerprint, graph.op_fingerprint):
        raise UsageError(
            "the plan is for another model",
            notes=[
                f"plan:  {plan.model.name}, fingerprint {plan.model.fingerprint}, "
                f"{plan.model.num_parameters} parameters, {plan.model.num_ops} ops",
                f"model: {graph.name}, fingerprint {graph.fingerprint}, {graph.num_parameters} parameters, "
                f"{len(graph.ops)} ops",
                *_other_versions(plan.versions),
            ],
            help="plan this model anew",
        )
    names = [box for box in forward_boxes(graph) if box in {layer.path for layer in graph.layers}]
    planned = [layer for layer in plan.layers if layer.class_name not in ("InputLayer", "Loss")]
    if names == [layer.name for layer in planned]:
        return plan
    device = {name: layer.device for name, layer in zip(names, planned, strict=True)}
    layers = tuple(replace(layer, name=name) for name, layer in zip(names, planned, strict=True))
    placement = {op.name: device[op.layer] for op in graph.ops if op.layer in device}
    return plan.placed_anew(placement, layers=layers)


def _other_versions(planned: Mapping[str, str]) -> Iterator[str]:
    """What traces models in another version here than where the plan was made: it may trace other ops."""
    for package in ("tensorflow", "keras"):
        if planned.get(package, version(package)) != version(package):
            yield f"planned with {package} {planned[package]}, and this is {package} {version(package)}"
