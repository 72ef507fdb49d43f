"""A plan on other devices than it was made for, and within other limits: renamed, checked, and honest about figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from partitioner.errors import InfeasibleError, UsageError
from partitioner.hardware.topology import memory_limits
from partitioner.ir.devices import DeviceName, parse_devices, short_name
from partitioner.ir.plan import DeviceInfo, Origin, PlanDocument, Updates
from partitioner.ir.units import format_bytes, plural


def retargeted(plan: PlanDocument, devices: Mapping[str, str]) -> PlanDocument:
    """The plan with other devices in place of its own; what it does not name stays.

    Every op stays with the ops beside it. Figures stay those that were predicted for the devices that were planned for:
    devices and links count as assumed, and a note says it. Verification, measured steps and what-ifs, which were of
    those devices, are left out, and so are devices that the plan does not use.

    Args:
        plan: The plan.
        devices: The new device by the plan's device: `{"GPU:0": "CPU:0"}`, or ranges of one length,
            `{"GPU:0-3": "GPU:4-7"}`.

    Raises:
        UsageError: A name is wrong or not in the plan, ranges differ in length, two devices of the plan would become
            one, or all parameters of asynchronous replicas would be in another process.
    """
    used = {DeviceName.parse(name) for name in (*plan.placement.values(), *plan.used_devices)}
    listed = [DeviceName.parse(info.name) for info in plan.devices]
    asked = _pairs(devices, listed)
    target = {name: asked.get(name, name) for name in listed if name in used}
    _refuse_shared(target)
    changed = {name.canonical: to.canonical for name, to in target.items() if name != to}
    if not changed:
        return plan
    renamed: Any = _renamed(
        msgspec.to_builtins(_of_devices_alone(plan, frozenset(name.canonical for name in used))), changed
    )
    document = msgspec.convert(renamed, PlanDocument)
    _refuse_parameters_elsewhere(document)
    return replace(
        document,
        devices=tuple(_assumed(info, set(changed.values())) for info in document.devices),
        links=tuple(replace(link, origin=Origin.ASSUMED) for link in document.links),
        request=plan.request,  # what was asked of the planner
        notes=(_note(plan, changed), *plan.notes),
    )


def within(plan: PlanDocument, memory_limit: str | float | Mapping[str, str | float]) -> PlanDocument:
    """The plan with these limits of memory in place of its own.

    Args:
        plan: The plan.
        memory_limit: Usable memory of each device, or a size by device: see `memory_limits`.

    Raises:
        UsageError: A size cannot be read, or a name is not among the plan's devices.
        InfeasibleError: The predicted peak of a device exceeds its limit.
    """
    names = [DeviceName.parse(info.name) for info in plan.devices]
    limits = {name.canonical: size for name, size in memory_limits(names, memory_limit).items()}
    peaks = plan.predicted.peak_bytes
    over = [(name, peaks.get(name, 0), limit) for name, limit in limits.items() if peaks.get(name, 0) > limit]
    if over:
        raise InfeasibleError(
            f"the plan does not fit on {', '.join(short_name(name) for name, _, _ in over)}",
            notes=[
                f"{short_name(name)}: predicted peak {format_bytes(peak)}, limit {format_bytes(limit)}, "
                f"{format_bytes(peak - limit)} too much"
                for name, peak, limit in over
            ],
            help="plan the model anew within these limits",
        )
    return replace(
        plan,
        devices=tuple(replace(info, memory_bytes=limits.get(info.name, info.memory_bytes)) for info in plan.devices),
        memory=tuple(
            replace(held, headroom_bytes=limits[held.device] - held.peak_bytes) if held.device in limits else held
            for held in plan.memory
        ),
    )


def _pairs(devices: Mapping[str, str], listed: Sequence[DeviceName]) -> dict[DeviceName, DeviceName]:
    """New name by name in the plan."""
    pairs: dict[DeviceName, DeviceName] = {}
    for old_text, new_text in devices.items():
        old, new = parse_devices(old_text), parse_devices(new_text)
        if len(old) != len(new):
            raise UsageError(
                f"{old_text}={new_text}: {plural(len(old), 'device')} cannot become {len(new)}",
                help="name as many devices on both sides",
            )
        for name, to in zip(old, new, strict=True):
            if name in pairs:
                raise UsageError(f"{name.short} is to become {pairs[name].short} and {to.short}", help="name it once")
            pairs[name] = to
    if strangers := [name.short for name in pairs if name not in listed]:
        raise UsageError(
            f"the plan has no {', '.join(strangers)}",
            notes=[f"devices of the plan: {', '.join(name.short for name in listed)}"],
            help="name devices of the plan first: OLD=NEW",
        )
    return pairs


def _refuse_shared(target: Mapping[DeviceName, DeviceName]) -> None:
    """Refuse one device for two of the plan's, whose stages would then run one after the other."""
    of_target: dict[DeviceName, DeviceName] = {}
    for name, to in target.items():
        if to in of_target:
            raise UsageError(
                f"{of_target[to].short} and {name.short} of the plan would both be {to.short}",
                notes=[f"the plan uses {plural(len(target), 'device')}, and needs as many"],
                help=f"give {name.short} another device, or plan the model anew on fewer devices",
            )
        of_target[to] = name


def _refuse_parameters_elsewhere(plan: PlanDocument) -> None:
    if plan.updates != Updates.ASYNC:
        return
    if remote := [name for name in plan.devices_of(0) if not DeviceName.parse(name).is_local]:
        raise UsageError(
            "the first of asynchronous replicas is where all parameters are, and "
            f"{', '.join(map(short_name, remote))} is elsewhere",
            help="give the devices of the first replica names of this process",
        )


def _of_devices_alone(plan: PlanDocument, used: frozenset[str]) -> PlanDocument:
    """The plan without unused devices, and without what ran or was planned on other machines than it will run on."""
    return replace(
        plan,
        devices=tuple(info for info in plan.devices if info.name in used),
        links=tuple(
            replace(link, pairs=tuple(pair for pair in link.pairs if used.issuperset(pair))) for link in plan.links
        ),
        predicted=replace(
            plan.predicted, peak_bytes={name: peak for name, peak in plan.predicted.peak_bytes.items() if name in used}
        ),
        verification=None,
        measured=None,
        what_if=(),
        request={},
    )


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A JSON value in which each text that is a device's canonical name is the other name, keys of objects too."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, names) for item in value]
    return value


def _assumed(info: DeviceInfo, new: set[str]) -> DeviceInfo:
    return replace(info, origin=Origin.ASSUMED) if info.name in new else info


def _note(plan: PlanDocument, changed: Mapping[str, str]) -> str:
    named = ", ".join(f"{short_name(old)} is {short_name(new)} now" for old, new in changed.items())
    hardware = ", ".join(dict.fromkeys(info.hardware for info in plan.devices if info.name in changed))
    return (
        f"other devices than planned for: {named}; times, memory and bounds are those predicted for {hardware}, "
        "and other texts name the devices planned for"
    )
