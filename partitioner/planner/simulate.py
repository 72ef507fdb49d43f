"""Simulate one step of a placed op graph: deterministic events, serial devices and serial links.

A device runs one op at a time, the one that became ready first (ties: graph order), as an executor with one
stream does. A tensor crosses to each device that needs it once, when it is ready, on a link that carries one
tensor at a time in each direction; transfers overlap with computation, and slow each other down where they share what
lies on their way. Ops that cost nothing take no place on their device.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from cost_models.buffers import may_overwrite
from cost_models.memory import allocated_bytes
from cost_models.network import Arrival, Network
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Op, VariableKind
from partitioner.ir.schedule import MemoryUse, OpRun, Schedule, Send
from partitioner.planner.buffers import Buffers
from partitioner.planner.memory_use import largest_tensors, memory_use
from partitioner.planner.one_device import with_memory_of_one

_OP_ENDS, _ARRIVES = 0, 1


def simulate(costed: CostedGraph, placement: Mapping[str, int], buffers: Buffers | None = None) -> Schedule:
    """Run one step on paper.

    Args:
        costed: The graph with its costs.
        placement: Index of a device of the topology for every op.
        buffers: `Buffers(costed)`, to save its work when many placements of one graph are simulated.

    Returns:
        Step time, busy time and peak memory per device, and every op and transfer with its times.
    """
    buffers = buffers or Buffers(costed)
    schedule = _Simulation(costed, placement, buffers).run()
    used = set(placement.values())
    return with_memory_of_one(schedule, costed, buffers, used.pop()) if len(used) == 1 else schedule


@dataclass
class _DeviceMemory:
    """Bytes held on one device now, and at the worst moment so far."""

    kind: str
    variables: dict[VariableKind, int]
    held: dict[tuple[str, bool], int] = field(default_factory=dict)
    activation_bytes: int = 0
    gradient_bytes: int = 0
    worst: tuple[int, int] = (0, 0)
    """Activation and gradient bytes when their sum was largest."""
    changes: list[tuple[float, str, int]] = field(default_factory=list)
    """Every buffer taken, and let go (negative), with the moment."""
    worst_after: int = 0
    """Changes until then."""

    def take(self, buffer: str, size_bytes: int, is_gradient: bool, now: float) -> None:
        size = allocated_bytes(size_bytes, self.kind)
        self.held[buffer, is_gradient] = size
        self.changes.append((now, buffer, size))
        if is_gradient:
            self.gradient_bytes += size
        else:
            self.activation_bytes += size
        if self.activation_bytes + self.gradient_bytes > sum(self.worst):
            self.worst = (self.activation_bytes, self.gradient_bytes)
            self.worst_after = len(self.changes)

    def drop(self, buffer: str, is_gradient: bool, now: float) -> None:
        size = self.held.pop((buffer, is_gradient), 0)
        self.changes.append((now, buffer, -size))
        if is_gradient:
            self.gradient_bytes -= size
        else:
            self.activation_bytes -= size

    @property
    def peak(self) -> MemoryUse:
        activation_bytes, gradient_bytes = self.worst
        alive: Counter[str] = Counter()
        for _, buffer, size in self.changes[: self.worst_after]:
            alive[buffer] += size
        return memory_use(
            self.variables,
            activation_bytes,
            gradient_bytes,
            seconds=self.changes[self.worst_after - 1][0] if self.changes else 0.0,
            largest=largest_tensors(alive.items()),
        )

    @property
    def over_time(self) -> tuple[tuple[float, int], ...]:
        fixed = sum(self.variables.values())
        held = accumulate((size for _, _, size in self.changes), initial=fixed)
        return tuple(zip([0.0, *(now for now, _, _ in self.changes)], held, strict=True))


class _Simulation:
    def __init__(self, costed: CostedGraph, placement: Mapping[str, int], buffers: Buffers) -> None:
        self.costed, self.graph, self.buffers = costed, costed.graph, buffers
        self.device = [placement[op.name] for op in self.graph.ops]
        self.position = {op.name: index for index, op in enumerate(self.graph.ops)}
        self.names = [placed.name for placed in costed.topology.devices]
        self.events: list[tuple[float, int, int, int, str]] = []
        self.ready: list[list[tuple[float, int]]] = [[] for _ in self.names]
        self.is_busy = [False] * len(self.names)
        self.busy_seconds = [0.0] * len(self.names)
        self.network = Network[str](costed.topology)
        self.runs: list[OpRun] = []
        self.sends: list[Send] = []
        self.end = 0.0
        self._wire()
        self._lay_out_memory()

    def _wire(self) -> None:
        """Who waits for what: `local[t]` are ops that read tensor t where it is made, `remote[t][d]` on d."""
        self.waiting = [0] * len(self.graph.ops)
        self.local: dict[str, list[int]] = {}
        self.remote: dict[str, dict[int, list[int]]] = {}
        for index, op in enumerate(self.graph.ops):
            sources = [(self.position[self.graph.tensor[n].producer], n) for n in dict.fromkeys(op.inputs)]
            sources += [(self.position[n], f"^{n}") for n in op.control_inputs]
            for source, name in sources:
                self.waiting[index] += 1
                if self.device[source] == self.device[index]:
                    self.local.setdefault(name, []).append(index)
                else:
                    self.remote.setdefault(name, {}).setdefault(self.device[index], []).append(index)

    def _lay_out_memory(self) -> None:
        """Variables on their devices, and how many readers each buffer on each device waits for."""
        self.memory = []
        for index, name in enumerate(self.names):
            kind = DeviceName.parse(name).type
            sizes = dict.fromkeys(VariableKind, 0)
            for variable in self.graph.variables:
                user = self.buffers.home_op.get(variable.name)
                if user is not None and self.device[self.position[user]] == index:
                    sizes[variable.kind] += allocated_bytes(variable.size_bytes, kind)
            self.memory.append(_DeviceMemory(kind, sizes))
        self.readers: dict[tuple[str, int], int] = {}
        for op_index, op in enumerate(self.graph.ops):
            for name in dict.fromkeys(op.inputs):
                self._add_reader(name, self.device[op_index])
            for name in op.outputs:
                home = self.device[op_index]
                for _ in self.remote.get(name, ()):
                    self._add_reader(name, home)
        # Who calls the step holds the batch until it ends, and is given the results.
        for name in (*self.graph.inputs, *self.graph.outputs):
            self._add_reader(name, self.device[self.position[self.graph.tensor[name].producer]])

    def _add_reader(self, name: str, device: int) -> None:
        owner = self._owner(name, device)
        if owner is not None:
            self.readers[owner, device] = self.readers.get((owner, device), 0) + 1

    def _owner(self, name: str, device: int) -> str | None:
        """The tensor whose buffer `name` uses on `device`: followed as far as the ops there pass it on."""
        current: str | None = name
        while current is not None and current in self.buffers.passes_on:
            if self.device[self.position[self.graph.tensor[current].producer]] != device:
                break
            current = self.buffers.passes_on[current]
        return current

    def run(self) -> Schedule:
        # Listed first: a free op among them releases others, which must not be taken for sources too.
        for index in [index for index, count in enumerate(self.waiting) if count == 0]:
            self._becomes_ready(index, 0.0)
        self._start_idle(0.0)
        while (now := self._next_seconds()) < math.inf:
            while self._next_seconds() == now:
                if self.network.next_seconds == now:
                    for arrival in self.network.arrivals():
                        self._sent(arrival)
                    continue
                _, kind, index, device, name = heapq.heappop(self.events)
                if kind == _OP_ENDS:
                    self.is_busy[self.device[index]] = False
                    self._finish(index, now)
                else:
                    self._arrive(name, device, now)
            self._start_idle(now)
        return Schedule(
            step_seconds=self.end,
            busy_seconds=dict(zip(self.names, self.busy_seconds, strict=True)),
            peak={name: memory.peak for name, memory in zip(self.names, self.memory, strict=True)},
            runs=tuple(self.runs),
            sends=tuple(self.sends),
            memory={name: memory.over_time for name, memory in zip(self.names, self.memory, strict=True)},
        )

    def _next_seconds(self) -> float:
        return min(self.events[0][0] if self.events else math.inf, self.network.next_seconds)

    def _becomes_ready(self, index: int, now: float) -> None:
        stack = [index]
        while stack:
            one = stack.pop()
            if self.costed.seconds[one][self.device[one]] > 0:
                heapq.heappush(self.ready[self.device[one]], (now, one))
            else:
                self._allocate(one, now)
                stack += self._complete(one, now)

    def _start_idle(self, now: float) -> None:
        for device, queue in enumerate(self.ready):
            if queue and not self.is_busy[device]:
                _, index = heapq.heappop(queue)
                seconds = self.costed.seconds[index][device]
                self._allocate(index, now)
                self.is_busy[device] = True
                self.busy_seconds[device] += seconds
                self.runs.append(
                    OpRun(
                        op=self.graph.ops[index].name,
                        device=self.names[device],
                        start_seconds=now,
                        end_seconds=now + seconds,
                    )
                )
                heapq.heappush(self.events, (now + seconds, _OP_ENDS, index, device, ""))

    def _finish(self, index: int, now: float) -> None:
        for one in self._complete(index, now):
            self._becomes_ready(one, now)

    def _complete(self, index: int, now: float) -> list[int]:
        """Hand on the results of an op, let go of its inputs, and return the ops that can run now."""
        op, device = self.graph.ops[index], self.device[index]
        self.end = max(self.end, now)
        released: list[int] = []
        for name in (*op.outputs, f"^{op.name}"):
            released += self._satisfied(self.local.get(name, ()))
            for target in self.remote.get(name, ()):
                self._send(name, device, target, now)
        for name in op.outputs:
            owner = self._owner(name, device)
            if owner == name and not self.readers.get((name, device)):
                self.memory[device].drop(name, name in self.buffers.gradients, now)
        for name in dict.fromkeys(op.inputs):
            self._read(name, device, now)
        return released

    def _satisfied(self, indices: list[int] | tuple[()]) -> list[int]:
        released = []
        for index in indices:
            self.waiting[index] -= 1
            if self.waiting[index] == 0:
                released.append(index)
        return released

    def _send(self, name: str, source: int, target: int, now: float) -> None:
        size = 0 if name.startswith("^") else self.graph.tensor[name].size_bytes
        if not name.startswith("^"):
            self.memory[target].take(name, size, name in self.buffers.gradients, now)
        arrival = self.network.send(name, source, target, size, now)
        if arrival is not None:
            self._sent(arrival)

    def _sent(self, arrival: Arrival[str]) -> None:
        name, source, target = arrival.key, arrival.source, arrival.target
        self.sends.append(
            Send(
                tensor=name,
                source=self.names[source],
                target=self.names[target],
                size_bytes=0 if name.startswith("^") else self.graph.tensor[name].size_bytes,
                start_seconds=arrival.start_seconds,
                end_seconds=arrival.end_seconds,
            )
        )
        heapq.heappush(self.events, (arrival.end_seconds, _ARRIVES, self.position.get(name, source), target, name))

    def _arrive(self, name: str, device: int, now: float) -> None:
        self.end = max(self.end, now)
        if not name.startswith("^"):
            self._read(name, self.device[self.position[self.graph.tensor[name].producer]], now)
        for index in self._satisfied(self.remote[name][device]):
            self._becomes_ready(index, now)

    def _allocate(self, index: int, now: float) -> None:
        op, device = self.graph.ops[index], self.device[index]
        for name in op.outputs:
            if self._owner(name, device) == name:
                size = self.graph.tensor[name].size_bytes
                if may_overwrite(op.type):
                    self._overwrite(op, size, device, now)
                self.memory[device].take(name, size, name in self.buffers.gradients, now)

    def _overwrite(self, op: Op, size_bytes: int, device: int, now: float) -> None:
        """Let go of an input that nobody else needs: the output is written over it."""
        for owner in dict.fromkeys(self._owner(name, device) for name in op.inputs):
            if owner is not None and self.readers[owner, device] == 1:
                key = (owner, owner in self.buffers.gradients)
                if key in self.memory[device].held and self.graph.tensor[owner].size_bytes == size_bytes:
                    self.memory[device].drop(*key, now)
                    return

    def _read(self, name: str, device: int, now: float) -> None:
        """One reader of `name` on `device` is done; the last one lets its buffer go."""
        owner = self._owner(name, device)
        if owner is None:
            return
        self.readers[owner, device] -= 1
        if self.readers[owner, device] == 0:
            self.memory[device].drop(owner, owner in self.buffers.gradients, now)
