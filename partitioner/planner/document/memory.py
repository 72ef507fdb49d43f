"""Memory of each device in a plan: over time, and at the peak by purpose and by the largest tensors."""

from __future__ import annotations

from collections.abc import Iterable

from partitioner.hardware.topology import usable_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import DeviceMemory, LargeTensor
from partitioner.ir.schedule import HeldTensor, Schedule
from partitioner.planner.simulate.memory_use import most_over_time

_PARTS = 60
"""Parts of a step; a plan has the most bytes held in each. A line of text has room for this many."""


def planned_memory(costed: CostedGraph, schedule: Schedule, devices: Iterable[str]) -> tuple[DeviceMemory, ...]:
    """The memory of some devices of the topology, as simulated."""
    devices_by_name = {placed.name: placed for placed in costed.topology.devices}
    memory = []
    for name in devices:
        use, placed = schedule.peak[name], devices_by_name[name]
        memory.append(
            DeviceMemory(
                device=name,
                peak_seconds=use.seconds,
                parameter_bytes=use.parameter_bytes,
                slot_bytes=use.slot_bytes,
                state_bytes=use.state_bytes,
                gradient_bytes=use.gradient_bytes,
                activation_bytes=use.activation_bytes,
                headroom_bytes=placed.memory_bytes - use.total_bytes,
                reserved_bytes=placed.device.memory_bytes - usable_bytes(DeviceName.parse(name), placed.device),
                largest=tuple(_large_tensor(costed.graph, held) for held in use.largest),
                over_time=most_over_time(schedule.memory.get(name, ()), schedule.step_seconds, num_parts=_PARTS),
            )
        )
    return tuple(memory)


def _large_tensor(graph: OpGraph, held: HeldTensor) -> LargeTensor:
    op = graph.op[graph.tensor[held.tensor].producer]
    return LargeTensor(op=op.name, layer=op.layer, size_bytes=held.size_bytes, num_buffers=held.num_buffers)
