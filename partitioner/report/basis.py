"""The basis of the estimates: devices and links, equal entries together, and where their numbers come from."""

from __future__ import annotations

from collections.abc import Iterable

from partitioner.ir.devices import MAX_NAMED, short_name, short_ranges
from partitioner.ir.plan import DeviceInfo, LinkInfo, PlanDocument
from partitioner.ir.units import format_bandwidth, format_bytes, format_percent, format_seconds, plural

_MAX_INFERRED = 5


def device_rows(plan: PlanDocument) -> list[tuple[str, str, str, str, str]]:
    """Device, hardware, origin, memory to use and peak; of many devices, equal devices share a row."""
    if len(plan.devices) <= MAX_NAMED:
        return [_device_row(plan, short_name(info.name), [info]) for info in plan.devices]
    alike: dict[tuple[object, ...], list[DeviceInfo]] = {}
    for info in plan.devices:
        key = info.hardware, info.origin, info.memory_bytes, info.name in plan.used_devices
        alike.setdefault(key, []).append(info)
    return [_device_row(plan, ", ".join(short_ranges(info.name for info in infos)), infos) for infos in alike.values()]


def _device_row(plan: PlanDocument, name: str, infos: list[DeviceInfo]) -> tuple[str, str, str, str, str]:
    first, more = infos[0], f" x {len(infos)}" if len(infos) > 1 else ""
    peaks = [plan.predicted.peak_bytes.get(info.name, 0) for info in infos]
    is_used = first.name in plan.used_devices or max(peaks) > 0
    peak = f"{'up to ' if min(peaks) < max(peaks) else ''}{format_bytes(max(peaks))}" if is_used else "not used"
    return name, f"{first.hardware}{more}", str(first.origin), format_bytes(first.memory_bytes), peak


def link_rows(plan: PlanDocument) -> list[tuple[str, str, str, str, str, str]]:
    """Link, origin, latency, bandwidth, pairs and uplinks, and bytes that cross it in a step."""
    return [
        (
            link.name,
            str(link.origin),
            format_seconds(link.latency_seconds),
            format_bandwidth(link.bandwidth_bytes_per_second),
            _where(link),
            format_bytes(link.sent_bytes) if link.num_pairs else "",
        )
        for link in plan.links
    ]


def _where(link: LinkInfo) -> str:
    pairs = plural(link.num_pairs, "pair") if link.num_pairs else ""
    uplinks = plural(link.num_uplinks, "shared uplink") if link.num_uplinks else ""
    return ", ".join(filter(None, (pairs, uplinks)))


def basis(plan: PlanDocument) -> str:
    """One sentence on where the seconds come from."""
    if plan.costs.source == "analytic":
        devices, links = _origins(plan.devices), _origins(plan.links)
        if links in ("", devices):
            return f"the estimates rest on {devices} hardware{' and link' if links else ''} figures"
        return f"the estimates rest on {devices} hardware figures and {links} link figures"
    origin = "measured here" if plan.costs.source == "measured" else f"from {plan.costs.source}"
    share = format_percent(plan.costs.measured_share)
    sentence = f"seconds of ops are {origin}: {share} on ops of these shapes, the rest inferred from ops like them"
    most = sorted(plan.costs.inferred_ops.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{op_type} {format_percent(part)}" for op_type, part in most[:_MAX_INFERRED])
    more = f" and {plural(len(most) - _MAX_INFERRED, 'type')} more" if len(most) > _MAX_INFERRED else ""
    return f"{sentence} ({named}{more})" if most else sentence


def _origins(hardware: Iterable[DeviceInfo | LinkInfo]) -> str:
    return " and ".join(dict.fromkeys(str(part.origin) for part in hardware))
