"""The hardware of named devices: from the machine, from the options, else assumed and marked so."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cost_models.catalogue import catalogue, device_named, link_named
from cost_models.hardware import Device, Link, UnknownHardware
from cost_models.memory import gpu_bytes, unfragmented_bytes
from cost_models.topology import Topology, TopologyDevice
from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName, parse_devices
from partitioner.ir.plan import DeviceInfo, Origin
from partitioner.spelling import argument

DEFAULT_GPU = "a100-40gb"
DEFAULT_GPU_LINK = "pcie4"
DEFAULT_NETWORK = "ethernet-25g"
SHOW_ALL = "partition hardware"

# Drivers add these to the name of a whole desktop or server GPU for a part of it or a slower relative.
_RELATIVES = frozenset({"grid", "laptop", "max-q", "mig", "mobile", "vgpu"})

_MOST_BYTES = 2**62

_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentGpu:
    """A GPU of this machine.

    Attributes:
        title: Its name by the driver.
        memory_bytes: Bytes that TensorFlow allocates from; 0 if unknown.
    """

    title: str
    memory_bytes: int = 0


def parse_bytes(text: str | float) -> int:
    """Read a memory size: `8GiB`, `500MB`, `8g` (GiB), or a number of bytes.

    Raises:
        UsageError: It is none of these, or not positive.
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*((?:[KMGT]I?)?)B?\s*", str(text).upper())
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    if match is None or not 0 < size < _MOST_BYTES:
        raise UsageError(f"{text!r} is not a memory size", help="e.g. 8GiB, 500MB, or bytes")
    unit = match[2]
    if len(unit) == 1 and not str(text).upper().rstrip().endswith("B"):
        unit += "I"  # a bare g means GiB
    return int(size * _UNITS[unit])


def build_topology(
    names: Sequence[DeviceName],
    *,
    hardware: str | None = None,
    link: str | None = None,
    memory_limit: str | float | Mapping[str, str | float] | None = None,
    present: Mapping[str, PresentGpu] | None = None,
) -> tuple[Topology, tuple[DeviceInfo, ...]]:
    """The topology to plan for, and the origin of its numbers.

    Args:
        names: Devices of the plan.
        hardware: Catalogue name for the GPUs (or for the CPUs, when there are only CPUs).
        link: Catalogue name for the links between devices of the same host.
        memory_limit: Usable bytes per device, as a single size or by device name.
        present: The GPUs that this machine has, by canonical device name.

    Raises:
        UsageError: An unknown name (with the closest names), a size that cannot be read, an unknown device.
    """
    limits = memory_limits(names, memory_limit)
    num_cpus = sum(name.type == "CPU" for name in names)
    placed, infos = [], []
    for name in names:
        gpu = (present or {}).get(name.canonical)
        device, origin = _hardware_of(name, hardware, gpu.title if gpu else "", all_cpus=num_cpus == len(names))
        usable = unfragmented_bytes(gpu.memory_bytes) if gpu and gpu.memory_bytes else usable_bytes(name, device)
        if name.type == "CPU" and name.is_local:
            usable = _host_memory_bytes() // num_cpus
        usable = limits.get(name, usable)
        placed.append(TopologyDevice(name=name.canonical, device=device, memory_bytes=usable))
        infos.append(DeviceInfo(name=name.canonical, hardware=device.name, origin=origin, memory_bytes=usable))
    chosen = _link_named(link) if link else None
    links = tuple(tuple(_link_between(a, b, chosen) for b in names) for a in names)
    return Topology(devices=tuple(placed), links=links), tuple(infos)


def usable_bytes(name: DeviceName, device: Device) -> int:
    """Bytes of buffers that a device can hold: of a GPU, of the memory that TensorFlow allocates from."""
    if name.type == "CPU":
        return device.memory_bytes
    return unfragmented_bytes(gpu_bytes(device.memory_bytes, device.compute_capability))


def _hardware_of(name: DeviceName, hardware: str | None, title: str, *, all_cpus: bool) -> tuple[Device, Origin]:
    if hardware and (name.type == "GPU" or all_cpus):
        try:
            return device_named(hardware), Origin.CATALOGUE
        except UnknownHardware as error:
            raise UsageError(str(error), help=SHOW_ALL) from error
    if name.type == "CPU":
        return device_named("cpu-core"), Origin.ASSUMED
    if not title:
        return device_named(DEFAULT_GPU), Origin.ASSUMED
    if (matched := _device_titled(title)) is not None:
        return matched, Origin.CATALOGUE
    own_name = "-".join(re.findall(r"[a-z0-9.]+", title.lower()))
    return replace(device_named(DEFAULT_GPU), name=own_name, title=title), Origin.ASSUMED


def _device_titled(title: str) -> Device | None:
    """The catalogue's device with this driver title, else the device whose name's words are all in the title."""
    devices = catalogue().devices.values()
    if _RELATIVES & set(re.findall(r"[a-z-]+", title.lower())):
        return None
    called = next((d for d in devices if title in d.driver_names), None)
    # `SXM4` counts as `sxm`.
    words = {word for part in re.findall(r"[a-z0-9]+", title.lower()) for word in (part, part.rstrip("0123456789"))}
    named = [d for d in devices if words.issuperset(d.name.split("-"))]
    return called or max(named, key=lambda d: len(d.name), default=None)


def memory_limits(
    names: Sequence[DeviceName], memory_limit: str | float | Mapping[str, str | float] | None
) -> dict[DeviceName, int]:
    """Usable bytes of each device that has a limit: a single size for all, or sizes by name.

    Raises:
        UsageError: A size cannot be read, or a name is not among the devices.
    """
    if memory_limit is None:
        return {}
    if isinstance(memory_limit, str) and "=" in memory_limit:
        pairs = [part.partition("=") for part in memory_limit.split(",")]
        memory_limit = {name: size for name, _, size in pairs}
    if not isinstance(memory_limit, Mapping):
        return dict.fromkeys(names, parse_bytes(memory_limit))
    limits = {name: parse_bytes(size) for text, size in memory_limit.items() for name in parse_devices([text])}
    strangers = [name.short for name in limits if name not in names]
    if strangers:
        raise UsageError(
            f"{argument('memory_limit')} names {', '.join(strangers)}, which {'is' if len(strangers) == 1 else 'are'} "
            "not among the devices",
            notes=[f"devices: {', '.join(name.short for name in names)}"],
        )
    return limits


def _link_named(name: str) -> Link:
    try:
        return link_named(name)
    except UnknownHardware as error:
        raise UsageError(str(error), help=SHOW_ALL) from error


def _link_between(a: DeviceName, b: DeviceName, chosen: Link | None) -> Link:
    if (a.job, a.replica, a.task) != (b.job, b.replica, b.task):
        return link_named(DEFAULT_NETWORK)
    if chosen is not None:
        return chosen
    return link_named("shared-memory" if a.type == b.type == "CPU" else DEFAULT_GPU_LINK)


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
