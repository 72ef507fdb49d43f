"""Choose the topology to plan for: from named devices and options, or from a topology of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cost_models.catalogue import catalogue
from cost_models.topology import Topology
from partitioner.errors import UsageError
from partitioner.hardware.presets import preset_topology
from partitioner.hardware.topology import PresentGpu, build_topology, memory_limits
from partitioner.hardware.topology_file import read_topology
from partitioner.ir.devices import DeviceName, parse_devices, short_ranges
from partitioner.ir.plan import DeviceInfo, Origin
from partitioner.spelling import argument


def chosen_topology(
    devices: str | Sequence[str] | None,
    *,
    topology: str | Path | Topology | None = None,
    hardware: str | None = None,
    link: str | None = None,
    memory_limit: str | float | Mapping[str, str | float] | None = None,
    present: Mapping[str, PresentGpu] | None = None,
) -> tuple[list[DeviceName], Topology, tuple[DeviceInfo, ...]]:
    """The devices of a plan, their topology, and the origin of its numbers.

    Args:
        devices: The devices to use; with a topology, all of its devices by default. Where all are on workers, `GPU:9`
            is the tenth GPU.
        topology: A host of the catalogue (`dgx-h100`, `64x dgx-h100`), a TOML file, or a value made in Python.
        hardware: See `build_topology`. With a topology, it must be what the topology says.
        link: See `build_topology`.
        memory_limit: See `build_topology`.
        present: See `build_topology`.

    Raises:
        UsageError: No device is named, a device is not in the topology, or an argument or the file is wrong.
    """
    if topology is None:
        if not devices:
            raise UsageError("which devices? neither devices nor a topology is given", help="e.g. GPU:0,GPU:1")
        names = parse_devices(devices)
        return names, *build_topology(names, hardware=hardware, link=link, memory_limit=memory_limit, present=present)
    whole = _whole(topology)
    if link:
        raise UsageError(f"the topology says what joins the devices; {argument('link', link)} would do nothing")
    _refuse_other_hardware(hardware, whole)
    position = {DeviceName.parse(placed.name): index for index, placed in enumerate(whole.devices)}
    names = _counted_through(parse_devices(devices), list(position)) if devices else list(position)
    _refuse_strangers(names, position)
    chosen = whole.subset([position[name] for name in names])
    limits = memory_limits(names, memory_limit)
    chosen = replace(
        chosen,
        devices=tuple(
            replace(placed, memory_bytes=limits.get(name, placed.memory_bytes))
            for name, placed in zip(names, chosen.devices, strict=True)
        ),
    )
    return names, chosen, _infos(chosen)


def _whole(topology: str | Path | Topology) -> Topology:
    if isinstance(topology, Topology):
        return topology
    is_file = isinstance(topology, Path) or topology.endswith(".toml") or "/" in topology
    return read_topology(Path(topology)) if is_file else preset_topology(str(topology))


def _refuse_other_hardware(hardware: str | None, topology: Topology) -> None:
    """Refuse a hardware name that differs from the topology's."""
    stated = {placed.device.name for placed in topology.devices}
    if hardware and stated != {hardware.strip().lower()}:
        raise UsageError(
            f"the topology says what the devices are; {argument('hardware', hardware)} would do nothing",
            notes=[f"its devices: {', '.join(sorted(stated))}"],
        )


def _counted_through(names: Sequence[DeviceName], of_topology: Sequence[DeviceName]) -> list[DeviceName]:
    """Count GPUs through a topology whose hosts are all workers: `GPU:9` is its tenth GPU."""
    if any(name.is_local for name in of_topology):
        return list(names)
    of_type = {kind: [name for name in of_topology if name.type == kind] for kind in ("CPU", "GPU")}
    return [
        of_type[name.type][name.index] if name.is_local and name.index < len(of_type[name.type]) else name
        for name in names
    ]


def _refuse_strangers(names: Sequence[DeviceName], position: Mapping[DeviceName, int]) -> None:
    strangers = [name.canonical for name in names if name not in position]
    if strangers:
        raise UsageError(
            f"the topology has no {', '.join(short_ranges(strangers))}",
            notes=[f"devices of the topology: {', '.join(short_ranges(name.canonical for name in position))}"],
        )


def _infos(topology: Topology) -> tuple[DeviceInfo, ...]:
    """The origin of each device's numbers: the catalogue, or else the user's file."""
    entries = catalogue().devices
    return tuple(
        DeviceInfo(
            name=placed.name,
            hardware=placed.device.name,
            origin=Origin.CATALOGUE if entries.get(placed.device.name) == placed.device else Origin.FILE,
            memory_bytes=placed.memory_bytes,
        )
        for placed in topology.devices
    )
