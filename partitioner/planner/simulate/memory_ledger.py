"""Bytes that devices hold over time: when buffers are allocated and freed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cost_models.memory import allocated_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.simulate.dataflow import Value


@dataclass
class MemoryLedger:
    """Buffers of one device, by value and microbatch: allocated once, freed after their last use."""

    held: dict[tuple[Value, int], list[float]] = field(default_factory=dict)
    """By value and microbatch: start, last use, bytes, and whether it is a gradient."""
    passing: list[tuple[float, float, int, int, int]] = field(default_factory=list)
    """Temporary memory of calls: start, end, activation bytes, gradient bytes, and the call's program."""

    def take(self, key: tuple[Value, int], seconds: float, size_bytes: int, *, is_gradient: bool = False) -> None:
        """Allocate a buffer."""
        self.held[key] = [seconds, seconds, size_bytes, is_gradient]

    def use(self, key: tuple[Value, int], seconds: float) -> None:
        """Keep a buffer at least until `seconds`."""
        entry = self.held.get(key)
        if entry is not None and entry[1] < seconds:
            entry[1] = seconds

    def rename(self, key: tuple[Value, int], other: tuple[Value, int]) -> None:
        """Rename a buffer from `key` to `other`."""
        if key in self.held:
            self.held[other] = self.held.pop(key)

    def timeline(self) -> list[tuple[float, int, int]]:
        """(seconds, activation bytes, gradient bytes) from then on, ascending."""
        changes: dict[float, list[int]] = {}

        def change(seconds: float, activation: int, gradient: int) -> None:
            entry = changes.setdefault(seconds, [0, 0])
            entry[0] += activation
            entry[1] += gradient

        for start, end, size, is_gradient in self.held.values():
            if end > start:
                bytes_of_kind = (0, int(size)) if is_gradient else (int(size), 0)
                change(start, *bytes_of_kind)
                change(end, -bytes_of_kind[0], -bytes_of_kind[1])
        for start, end, activation, gradient, _ in self.passing:
            change(start, activation, gradient)
            change(end, -activation, -gradient)
        points, now = [], [0, 0]
        for seconds in sorted(changes):
            now = [now[0] + changes[seconds][0], now[1] + changes[seconds][1]]
            points.append((seconds, now[0], now[1]))
        return points

    def held_at(self, seconds: float) -> list[tuple[Value, int]]:
        """Values and bytes of the buffers held then, without the temporary memory of calls."""
        return [(value, int(size)) for (value, _), (start, end, size, _) in self.held.items() if start <= seconds < end]

    def working_at(self, seconds: float) -> list[int]:
        """Programs whose calls hold temporary memory then."""
        return [program for start, end, _, _, program in self.passing if start <= seconds < end]


def variable_bytes(costed: CostedGraph, programs: StagePrograms) -> list[dict[VariableKind, int]]:
    """Bytes of variables on each device of the topology; a variable is where the ops that use it are."""
    graph = costed.graph
    index = {placed.name: number for number, placed in enumerate(costed.topology.devices)}
    device = _variable_devices(costed, programs)
    kinds = [DeviceName.parse(placed.name).type for placed in costed.topology.devices]
    sizes = [dict.fromkeys(VariableKind, 0) for _ in index]
    for variable in graph.variables:
        if variable.name in device:
            where = index.get(device[variable.name], 0)
            sizes[where][variable.kind] += allocated_bytes(variable.size_bytes, kinds[where])
    return sizes


def _variable_devices(costed: CostedGraph, programs: StagePrograms) -> Mapping[str, str]:
    graph = costed.graph
    ran_on: dict[str, str] = {}
    group_on: dict[str, str] = {}
    for program in programs.programs:
        for name in program.ops:
            ran_on.setdefault(name, program.device)
            if graph.op[name].colocation_group:
                group_on.setdefault(graph.op[name].colocation_group, program.device)
    device: dict[str, str] = {}
    for op in graph.ops:
        where = ran_on.get(op.name) or group_on.get(op.colocation_group)
        for variable in op.variables:
            if where is not None:
                device.setdefault(variable, where)
    for state in programs.states:
        device.setdefault(state.variable, programs.stages[max(0, state.stage)])
    return device
