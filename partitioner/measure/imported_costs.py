"""Costs that were measured elsewhere: whether they fit the devices and the model, and the notes for the plan."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.measured import MeasuredCosts, MeasuredDevice
from cost_models.topology import Topology
from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName, short_name
from partitioner.spelling import argument, listed


def refuse_other_devices(path: str, costs: MeasuredCosts, topology: Topology) -> None:
    """Refuse costs of other kinds of devices.

    Raises:
        UsageError: The file lacks a type of device of the plan, or has it for other hardware only.
    """
    has = [f"{path} has: {_described(device)}" for device in costs.devices] or [f"{path} has no device"]
    for placed in topology.devices:
        kind = DeviceName.parse(placed.name).type
        of_type = [device for device in costs.devices if device.type == kind]
        if not of_type:
            raise UsageError(
                f"{path} holds no costs of a {kind}, and {short_name(placed.name)} is planned for",
                notes=has,
                help=f"measure there: {argument('costs', 'measured')}; or leave out {argument('costs')}",
            )
        if placed.device.name not in [device.hardware for device in of_type]:
            raise UsageError(
                f"{path} holds no costs of {placed.device.name}, which {short_name(placed.name)} is planned as",
                notes=has,
                help=f"{argument('hardware', of_type[0].hardware)}; or leave out {argument('costs')}",
            )


def refuse_other_ops(path: str, costed: CostedGraph, measured: Mapping[int, MeasuredDevice]) -> None:
    """Refuse costs without any op of the types in the graph.

    Raises:
        UsageError: The costs have no such op.
    """
    wanted = {
        op.type for op, cost in zip(costed.graph.ops, costed.costs, strict=True) if cost.flops or cost.moved_bytes
    }
    for index, device in measured.items():
        measured_types = {op.type for op in device.ops.values()}
        if wanted and not wanted & measured_types:
            raise UsageError(
                f"{path} knows no op like those of this model on {short_name(costed.topology.devices[index].name)}",
                notes=[
                    f"measured: {listed(sorted(measured_types)) or 'nothing'}",
                    f"model:    {listed(sorted(wanted))}",
                ],
                help=f"measure this model: {argument('costs', 'measured')}; or leave out {argument('costs')}",
            )


def costs_notes(
    path: str,
    costs: MeasuredCosts,
    measured: Mapping[int, MeasuredDevice],
    titles: Mapping[int, str],
    versions: Mapping[str, str],
) -> list[str]:
    """Notes for a plan that uses costs of another machine.

    Args:
        path: Path of the file.
        costs: Its contents.
        measured: The measured device for each device of the topology, by index.
        titles: Driver titles of the devices that are present, by index in the topology.
        versions: Versions of the libraries here, and whether XLA compiles.
    """
    notes = []
    there, here = costs.versions.get("tensorflow"), versions.get("tensorflow")
    if there and here and there != here:
        notes.append(f"{path} was measured with TensorFlow {there}, this is {here}")
    was_compiled, is_compiled = ("jit_compile" in settings for settings in (costs.versions, versions))
    if was_compiled != is_compiled:
        how = ("without XLA", "compiled by XLA")
        notes.append(f"{path} was measured {how[was_compiled]}, and the plan is for steps {how[is_compiled]}")
    others = {
        (device.title, titles[index]): None
        for index, device in measured.items()
        if titles.get(index) and device.title != titles[index]
    }
    return notes + [f"{path} was measured on {there}, this machine has {here}" for there, here in others]


def _described(device: MeasuredDevice) -> str:
    return f"{device.type} {device.title or 'without a title'} (as {device.hardware}), {len(device.ops)} ops"
