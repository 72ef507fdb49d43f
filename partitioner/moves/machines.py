"""Changes of the machine that a request can name: more devices, more memory, faster links, other hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cost_models.catalogue import catalogue
from cost_models.hardware import Device
from partitioner.constraints.changes import GIB
from partitioner.hardware.topology import parse_bytes
from partitioner.ir.devices import DeviceName, short_ranges
from partitioner.ir.plan import Origin, PlanDocument
from partitioner.ir.units import format_bandwidth, format_bytes, plural
from partitioner.options import Machine

_FAMILIES = ("pcie", "nvlink")
_NO_LINKS = ("nvlink-c2c",)
"""Of these families, what joins a GPU and a CPU."""
_MUCH = 1.5
"""A link that is not this many times as fast is no other link."""
_MOST_LINKS = 2
_MORE_MEMORY = (1.25, 1.5, 2.0)


def more_devices(plan: PlanDocument) -> Iterator[tuple[str, dict[str, Any]]]:
    """One more device like the last, or one for each replica, and twice as many; a topology says what there is."""
    if "topology" in plan.request:
        return
    names = [DeviceName.parse(name) for name in _planned_for(plan)]
    replicas = plan.request.get("replicas")
    for count in dict.fromkeys((replicas if isinstance(replicas, int) else 1, len(names))):
        last = max(name for name in names if (name.job, name.task, name.type) == _kind(names[-1]))
        more = [replace(last, index=last.index + number) for number in range(1, count + 1)]
        devices = ",".join(short_ranges(name.canonical for name in (*names, *more)))
        yield f"{plural(count, 'more device')} like {last.short}", {"devices": devices}


def fewer_limits(plan: PlanDocument) -> Iterator[tuple[str, dict[str, Any]]]:
    """Higher memory limits, up to all that the devices have."""
    given = plan.request.get("memory_limit")
    if given is None:
        return
    machine = ("devices", "hardware", "link", "topology")
    whole = Machine(**{name: plan.request[name] for name in machine if name in plan.request}).resolved
    most = min(placed.memory_bytes for placed in whole.devices)
    if not isinstance(given, dict) and "=" not in str(given):
        for times in _MORE_MEMORY:
            size = _round(times * parse_bytes(given))
            if size < most:
                yield f"{format_bytes(size)} of each device", {"memory_limit": f"{size // 2**20}MiB"}
    yield f"no memory limit: {format_bytes(most)} of a device", {"memory_limit": None}


def other_links(plan: PlanDocument) -> Iterator[tuple[str, dict[str, Any]]]:
    """The next two faster links of the catalogue, for GPUs of one host whose links neither a file says nor a test."""
    names = [DeviceName.parse(name) for name in _planned_for(plan)]
    are_of_a_host = len({name.host for name in names}) == 1 and all(name.type == "GPU" for name in names)
    if "topology" in plan.request or plan.request.get("costs") or not are_of_a_host or not plan.links:
        return
    speed, count = min(link.bandwidth_bytes_per_second for link in plan.links), 0
    listed = catalogue().links.items()
    links = [link for name, link in listed if name.startswith(_FAMILIES) and name not in _NO_LINKS]
    for link in sorted(links, key=lambda link: (link.bandwidth_bytes_per_second, link.name)):
        if link.bandwidth_bytes_per_second >= _MUCH * speed and count < _MOST_LINKS:
            speed, count = link.bandwidth_bytes_per_second, count + 1
            yield f"the link {link.name}, {format_bandwidth(speed)}", {"link": link.name}


def other_hardware(plan: PlanDocument) -> Iterator[tuple[str, dict[str, Any]]]:
    """The next GPU of the catalogue that is nowhere slower: one that computes faster, and one with more memory."""
    kinds = {info.hardware for info in plan.devices if info.name in set(_planned_for(plan))}
    device = catalogue().devices.get(min(kinds)) if len(kinds) == 1 else None
    is_gpu = DeviceName.parse(plan.devices[0].name).type == "GPU"
    if device is None or not is_gpu or "topology" in plan.request:
        return
    better = [other for other in catalogue().devices.values() if _is_nowhere_worse(other, device)]
    faster = [other for other in better if other.peak_flops["float32"] > device.peak_flops["float32"]]
    larger = [other for other in better if other.memory_bytes > device.memory_bytes]
    for chosen in (min(faster, key=_step, default=None), min(larger, key=_step, default=None)):
        if chosen is not None:
            yield f"the hardware {chosen.name}, {format_bytes(chosen.memory_bytes)}", {"hardware": chosen.name}


def _planned_for(plan: PlanDocument) -> list[str]:
    """The devices of the request, without hosts that only run what GPUs cannot."""
    return [info.name for info in plan.devices if not (info.hardware == "host" and info.origin is Origin.ASSUMED)]


def _kind(name: DeviceName) -> tuple[str, int, str]:
    return name.job, name.task, name.type


def _round(size_bytes: float) -> int:
    """Up to a whole MiB below 1 GiB, else to a whole quarter of a GiB."""
    step = 2**20 if size_bytes < GIB else GIB // 4
    return math.ceil(size_bytes / step) * step


def _is_nowhere_worse(other: Device, device: Device) -> bool:
    """Whether a device of the same maker has no figure that is worse."""
    same_maker = bool(other.compute_capability) == bool(device.compute_capability)
    flops = all(other.peak_flops.get(dtype, 0.0) >= peak for dtype, peak in device.peak_flops.items())
    bandwidth = other.memory_bandwidth_bytes_per_second >= device.memory_bandwidth_bytes_per_second
    return same_maker and flops and bandwidth and other.memory_bytes >= device.memory_bytes


def _step(device: Device) -> tuple[float, int, str]:
    """Orders devices so that the next one is the smallest change."""
    return device.peak_flops["float32"], device.memory_bytes, device.name
