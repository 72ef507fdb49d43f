"""Where ops really go: on their device, or on its host where TensorFlow has no kernel for a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph


def op_devices(graph: OpGraph, placement: Mapping[str, int], names: Sequence[str]) -> dict[str, str]:
    """Canonical device name of every op; an op that no GPU can run goes to the host of its GPU."""
    devices = [DeviceName.parse(name) for name in names]
    own = [device.canonical for device in devices]
    host = [device.stand_by.canonical for device in devices]
    return {op.name: (host if op.host_only else own)[placement[op.name]] for op in graph.ops}
