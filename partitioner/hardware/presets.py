"""A topology by name: a host of the catalogue, or many of them behind a network."""

from __future__ import annotations

import re

from cost_models.catalogue import device_named, host_named, link_named
from cost_models.communication import in_series
from cost_models.hardware import UnknownHardware
from cost_models.topology import Topology, TopologyDevice, Uplink
from partitioner.errors import UsageError
from partitioner.hardware.topology import SHOW_ALL, usable_bytes
from partitioner.ir.devices import DeviceName
from partitioner.spelling import argument

MAX_DEVICES = 4096


def preset_topology(text: str) -> Topology:
    """The topology of `dgx-h100`, or of `64x dgx-h100`: 64 such hosts.

    The devices of a single host are `GPU:0`, `GPU:1`, ...; those of several hosts are `/job:worker/task:0/GPU:0` and so
    on, with a task per host.

    Raises:
        UsageError: The catalogue has no such host (with the closest names), or there are none or too many devices.
    """
    match = re.fullmatch(r"\s*(?:(\d+)\s*x\s*)?(\S+)\s*", text)
    try:
        kind = host_named(match[2] if match else text)
    except UnknownHardware as error:
        raise UsageError(str(error), help=f"{SHOW_ALL}, or a file: {argument('topology', 'FILE.toml')}") from error
    num_hosts = int(match[1]) if match and match[1] else 1
    if not 1 <= num_hosts * kind.num_devices <= MAX_DEVICES:
        raise UsageError(f"{text!r} has {num_hosts * kind.num_devices} devices, expected 1 to {MAX_DEVICES}")
    device = device_named(kind.device)
    names = [
        DeviceName(job="worker", task=host, type="GPU", index=index)
        if num_hosts > 1
        else DeviceName(type="GPU", index=index)
        for host in range(num_hosts)
        for index in range(kind.num_devices)
    ]
    hosts = [index // kind.num_devices for index in range(len(names))]
    return Topology.of_hosts(
        [TopologyDevice(name=name.canonical, device=device, memory_bytes=usable_bytes(name, device)) for name in names],
        hosts,
        within=in_series([link_named(name) for name in kind.within]),
        between=in_series([link_named(name) for name in kind.between]),
        uplinks=[
            Uplink(
                name=f"host {host}",
                devices=frozenset(range(host * kind.num_devices, (host + 1) * kind.num_devices)),
                link=link_named(kind.uplink),
            )
            for host in range(num_hosts)
            if kind.uplink
        ],
    )
