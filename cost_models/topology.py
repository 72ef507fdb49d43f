"""The devices of a plan and how they reach each other: links, hosts, and shared uplinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from cost_models.hardware import Device, Link, StagedLink, UnknownHardware

Channel = tuple[int, int] | str
"""A resource of a transfer: the link of a pair of devices, or a direction of a shared link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDevice:
    """A device of a plan: its canonical name, its kind, and its usable bytes."""

    name: str
    device: Device
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """A link that all traffic between some devices and the others shares: a network adapter, a port of a PCIe switch.

    Each direction has the link's whole bandwidth; its latency is part of the pairs' links.
    """

    name: str
    devices: frozenset[int]
    link: Link


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The devices of a plan; `links[a][b]` leads from device a to device b, and the diagonal is ignored.

    Attributes:
        devices: Devices in the order of the plan.
        links: A row per device. Rows may be the same object, so 512 devices cost no more than their hosts.
        hosts: Number of each device's host; empty where all are on the same host.
        uplinks: Links that several pairs share.

    Raises:
        ValueError: Lists every violation.
    """

    devices: tuple[TopologyDevice, ...]
    links: tuple[tuple[Link, ...], ...]
    hosts: tuple[int, ...] = ()
    uplinks: tuple[Uplink, ...] = ()

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            raise ValueError("the topology is malformed:\n  " + "\n  ".join(problems))

    @classmethod
    def uniform(cls, devices: Iterable[TopologyDevice], link: Link) -> Self:
        """All devices joined by the same kind of link."""
        members = tuple(devices)
        return cls(devices=members, links=((link,) * len(members),) * len(members))

    @classmethod
    def of_hosts(
        cls,
        devices: Iterable[TopologyDevice],
        hosts: Sequence[int],
        *,
        within: Link,
        between: Link,
        uplinks: Iterable[Uplink] = (),
    ) -> Self:
        """Hosts whose devices are joined by the same kind of link, and a network between the hosts."""
        rows = {host: tuple(within if other == host else between for other in hosts) for host in set(hosts)}
        return cls(
            devices=tuple(devices),
            links=tuple(rows[host] for host in hosts),
            hosts=tuple(hosts),
            uplinks=tuple(uplinks),
        )

    def subset(self, indices: Sequence[int]) -> Self:
        """Only these devices, in this order, with the links, hosts and uplinks they have here."""
        position = {index: new for new, index in enumerate(indices)}
        rows: dict[int, tuple[Link, ...]] = {}
        for index in indices:  # shared rows stay shared
            row = self.links[index]
            rows.setdefault(id(row), tuple(row[other] for other in indices))
        return type(self)(
            devices=tuple(self.devices[index] for index in indices),
            links=tuple(rows[id(self.links[index])] for index in indices),
            hosts=tuple(self.hosts[index] for index in indices) if self.hosts else (),
            uplinks=tuple(
                Uplink(name=uplink.name, devices=frozenset(left), link=uplink.link)
                for uplink in self.uplinks
                if (left := [position[index] for index in uplink.devices if index in position])
            ),
        )

    def with_another(self, index: int, name: str) -> Self:
        """The topology with a copy of a device at its end: of the same kind, memory and host, links and uplinks.

        The two are joined as the device is to the first other device on its host, or to the first of all.
        """
        count = len(self.devices)
        near = [other for other in range(count) if other != index and self.host(other) == self.host(index)]
        between = self.links[index][(near or [other for other in range(count) if other != index] or [index])[0]]
        last = tuple(between if other == index else self.links[index][other] for other in range(count))
        return type(self)(
            devices=(*self.devices, replace(self.devices[index], name=name)),
            links=(
                *((*row, between if other == index else row[index]) for other, row in enumerate(self.links)),
                (*last, between),
            ),
            hosts=(*self.hosts, self.hosts[index]) if self.hosts else (),
            uplinks=tuple(
                replace(uplink, devices=uplink.devices | {count}) if index in uplink.devices else uplink
                for uplink in self.uplinks
            ),
        )

    def faster(self, factor: float) -> Self:
        """The topology with `factor` times the bandwidth on every link and uplink; latencies stay."""
        rows: dict[int, tuple[Link, ...]] = {}
        for row in self.links:  # shared rows stay shared
            rows.setdefault(id(row), tuple(_faster(link, factor) for link in row))
        return type(self)(
            devices=self.devices,
            links=tuple(rows[id(row)] for row in self.links),
            hosts=self.hosts,
            uplinks=tuple(replace(uplink, link=_faster(uplink.link, factor)) for uplink in self.uplinks),
        )

    def with_uplinks_shared(self, numbers: Mapping[str, int]) -> Self:
        """The topology as one of several users sees it that send over an uplink at the same time: it has its share.

        Args:
            numbers: Users of uplinks, by the name of the uplink; of others there is one.
        """
        shared = (
            replace(uplink, link=_faster(uplink.link, 1 / max(1, numbers.get(uplink.name, 1))))
            for uplink in self.uplinks
        )
        return replace(self, uplinks=tuple(shared))

    def index(self, name: str) -> int:
        """Position of the device with this canonical name.

        Raises:
            UnknownHardware: The topology has no such device.
        """
        for index, placed in enumerate(self.devices):
            if placed.name == name:
                return index
        raise UnknownHardware("device of the topology", name, (placed.name for placed in self.devices))

    def link(self, a: int, b: int) -> Link:
        """The link from device a to device b."""
        return self.links[a][b]

    def host(self, device: int) -> int:
        """Number of the device's host."""
        return self.hosts[device] if self.hosts else 0

    @cached_property
    def shares(self) -> bool:
        """Whether transfers between different pairs of devices share a channel."""
        rows = {id(row): row for row in self.links}.values()
        return bool(self.uplinks) or any(isinstance(link, StagedLink) for row in rows for link in row)

    def channels(self, a: int, b: int) -> Mapping[Channel, float]:
        """The channels of a transfer from device a to device b, each with its bytes per second.

        A route through host memory leaves a by its first link and reaches b by its last; all transfers that a device
        sends, or receives, through host memory share this link.
        """
        link = self.link(a, b)
        occupied: dict[Channel, float] = {(a, b): link.bandwidth_bytes_per_second}
        if isinstance(link, StagedLink):
            for hop, device, direction in ((link.hops[0], a, "out"), (link.hops[-1], b, "in")):
                occupied[f"device {device} {hop.name} {direction}"] = hop.bandwidth_bytes_per_second
        for uplink in self.uplinks:
            if (a in uplink.devices) != (b in uplink.devices):
                direction = "out" if a in uplink.devices else "in"
                occupied[f"{uplink.name} {direction}"] = uplink.link.bandwidth_bytes_per_second
        return occupied


def _faster(link: Link, factor: float) -> Link:
    wider = replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second * factor)
    if isinstance(wider, StagedLink):
        return replace(wider, hops=tuple(_faster(hop, factor) for hop in wider.hops))
    return wider


def _violations(topology: Topology) -> Iterable[str]:
    names = [placed.name for placed in topology.devices]
    if not names:
        yield "no devices"
    if len(topology.links) != len(names) or any(len(row) != len(names) for row in topology.links):
        sizes = [len(row) for row in topology.links]
        yield f"links must be {len(names)} x {len(names)}, have rows of {sizes}"
    if topology.hosts and len(topology.hosts) != len(names):
        yield f"{len(topology.hosts)} hosts for {len(names)} devices"
    for name in sorted(name for name, count in Counter(names).items() if count > 1):
        yield f"two devices are named {name!r}"
    for name in sorted(name for name, count in Counter(u.name for u in topology.uplinks).items() if count > 1):
        yield f"two uplinks are named {name!r}"
    for uplink in topology.uplinks:
        strangers = sorted(index for index in uplink.devices if not 0 <= index < len(names))
        if strangers:
            yield f"uplink {uplink.name!r} has devices {strangers} of {len(names)}"
    for placed in topology.devices:
        if placed.memory_bytes < 0:
            yield f"device {placed.name!r} may use {placed.memory_bytes} bytes, expected at least 0"
