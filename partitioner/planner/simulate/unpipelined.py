"""Simulate one step of a placed op graph: deterministic events, serial devices and serial links.

A device runs one op at a time, first the op that became ready first (ties: graph order), as an executor with one stream
does. Where ops were measured beside busy devices too, an op takes longer the more of them are busy when it starts. A
tensor crosses once to each device that needs it, when it is ready, on a link that carries one tensor at a time in each
direction; transfers overlap with computation, and slow each other down where they share links. A copy to a GPU first
waits for what the GPU has been given (`streams.py`). Ops without cost do not occupy their device. The host of a GPU
starts its ops one after the other: the nth starts no earlier than n times what that takes. Gradients may be delayed
(`stages/delayed_gradients.py`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cost_models.network import Arrival, Network
from partitioner.ir.costed import CostedGraph
from partitioner.ir.schedule import OpRun, Schedule, Send
from partitioner.planner.simulate.streams import Streams
from partitioner.planner.simulate.unpipelined_memory import TimedStep, Transfer, Work, with_memory

_OP_ENDS, _ARRIVES = 0, 1


class _Copy(NamedTuple):
    """A tensor for a device that has not finished what it had been given when the copy was asked for."""

    asked: float
    name: str
    source: int
    size_bytes: int


def simulate(
    costed: CostedGraph,
    placement: Mapping[str, int],
    *,
    delayed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Schedule:
    """Simulate one step.

    Args:
        costed: The graph with its costs.
        placement: Index of a device of the topology for every op.
        delayed: Gradients that wait for others, as `delayed_gradients` gives them.

    Returns:
        Step time, busy time and peak memory per device, and every op and transfer with its times.
    """
    return with_memory(timed(costed, placement, delayed=delayed))


def timed(
    costed: CostedGraph,
    placement: Mapping[str, int],
    *,
    delayed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> TimedStep:
    """As `simulate`, without the memory, which takes longer to find out than the times do."""
    simulation = _Simulation(costed, placement, delayed)
    return TimedStep(
        schedule=simulation.run(), costed=costed, placement=placement, delayed=delayed, began=simulation.began
    )


class _Simulation:
    def __init__(self, costed: CostedGraph, placement: Mapping[str, int], delayed: Mapping[str, Sequence[str]]) -> None:
        self.costed, self.graph = costed, costed.graph
        self.device = [placement[op.name] for op in self.graph.ops]
        self.position = {op.name: index for index, op in enumerate(self.graph.ops)}
        self.names = [placed.name for placed in costed.topology.devices]
        self.events: list[tuple[float, int, int, int, str]] = []
        self.ready: list[list[tuple[float, int]]] = [[] for _ in self.names]
        self.running: list[int | None] = [None] * len(self.names)
        self.busy_seconds = [0.0] * len(self.names)
        # When the host of each device has started the next op.
        self.dispatched = [0.0] * len(self.names)
        self.network = Network[str](costed.topology)
        self.streams = Streams(costed.topology)
        # When each op was given to its device: once what it waits for from other devices had arrived.
        self.given = [0.0] * len(self.graph.ops)
        # Seconds of each op that has started.
        self.took = [0.0] * len(self.graph.ops)
        # When the host had started each op, and asks for copies of what it makes.
        self.started = [0.0] * len(self.graph.ops)
        self.held: list[list[_Copy]] = [[] for _ in self.names]
        self.runs: list[OpRun] = []
        self.sends: list[Send] = []
        self.began: list[list[tuple[float, Work]]] = [[] for _ in self.names]
        self.end = 0.0
        self._wire(delayed)

    def _wire(self, delayed: Mapping[str, Sequence[str]]) -> None:
        """Readers by tensor: `local[t]` are ops that read tensor t on its device, `remote[t][d]` ops on device d."""
        self.waiting = [0] * len(self.graph.ops)
        self.local: dict[str, list[int]] = {}
        self.remote: dict[str, dict[int, list[int]]] = {}
        for index, op in enumerate(self.graph.ops):
            sources = [(self.position[self.graph.tensor[n].producer], n) for n in dict.fromkeys(op.inputs)]
            waits = (*op.control_inputs, *delayed.get(op.name, ()))
            sources += [(self.position[n], f"^{n}") for n in waits]
            for source, name in sources:
                self.waiting[index] += 1
                if self.device[source] == self.device[index]:
                    self.local.setdefault(name, []).append(index)
                else:
                    self.remote.setdefault(name, {}).setdefault(self.device[index], []).append(index)

    def run(self) -> Schedule:
        # The list is made first: an op without cost releases others, which must not count as sources too.
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
                    self.running[self.device[index]] = None
                    self._finish(index, now)
                else:
                    self._arrive(name, device, now)
            self._start_idle(now)
        return Schedule(
            step_seconds=self.end,
            busy_seconds=dict(zip(self.names, self.busy_seconds, strict=True)),
            peak={},
            runs=tuple(self.runs),
            sends=tuple(self.sends),
        )

    def _next_seconds(self) -> float:
        return min(self.events[0][0] if self.events else math.inf, self.network.next_seconds)

    def _becomes_ready(self, index: int, now: float) -> None:
        stack = [index]
        while stack:
            op = stack.pop()
            if self.costed.seconds[op][self.device[op]] > 0:
                heapq.heappush(self.ready[self.device[op]], (now, op))
            else:
                stack += self._complete(op, now)

    def _start_idle(self, now: float) -> None:
        for device, queue in enumerate(self.ready):
            if queue and self.running[device] is None:
                _, index = heapq.heappop(queue)
                seconds = self.took[index] = self._seconds(index, device)
                self.dispatched[device] += self.costed.dispatch_seconds[device]
                self.started[index] = self.dispatched[device]
                start = max(now, self.dispatched[device])
                self.running[device] = index
                self.busy_seconds[device] += seconds
                self.runs.append(
                    OpRun(
                        op=self.graph.ops[index].name,
                        device=self.names[device],
                        start_seconds=start,
                        end_seconds=start + seconds,
                    )
                )
                heapq.heappush(self.events, (start + seconds, _OP_ENDS, index, device, ""))
            if self.held[device]:
                self._copy_held(device, now)

    def _seconds(self, index: int, device: int) -> float:
        if not self.costed.crowded:
            return self.costed.seconds[index][device]
        busy = {other for other, running in enumerate(self.running) if running is not None}
        return self.costed.seconds_beside(index, device, busy)

    def _copy_held(self, device: int, now: float) -> None:
        """Begin the copies to a device that has finished what it had been given before them."""
        unfinished = [index for _, index in self.ready[device]]
        if (running := self.running[device]) is not None:
            unfinished.append(running)
        first_given = min((self.given[index] for index in unfinished), default=math.inf)
        held, self.held[device], waiting = self.held[device], [], set[int]()
        for copy in held:
            # Copies from one device to another keep their order.
            if copy.asked < first_given and copy.source not in waiting:
                self._copy(copy.name, copy.source, device, copy.size_bytes, now)
            else:
                waiting.add(copy.source)
                self.held[device].append(copy)

    def _finish(self, index: int, now: float) -> None:
        for released in self._complete(index, now):
            self._becomes_ready(released, now)

    def _complete(self, index: int, now: float) -> list[int]:
        """Send the results of an op, and return the ops that can run now."""
        op, device = self.graph.ops[index], self.device[index]
        self.began[device].append((now - self.took[index], op))
        self.end = max(self.end, now)
        released: list[int] = []
        for name in (*op.outputs, f"^{op.name}"):
            released += self._satisfied(self.local.get(name, ()), self.given[index])
            for target in self.remote.get(name, ()):
                self._send(name, device, target, now, asked=max(self.given[index], self.started[index]))
        return released

    def _satisfied(self, indices: list[int] | tuple[()], given: float) -> list[int]:
        released = []
        for index in indices:
            self.given[index] = max(self.given[index], given)
            self.waiting[index] -= 1
            if self.waiting[index] == 0:
                released.append(index)
        return released

    def _send(self, name: str, source: int, target: int, now: float, *, asked: float) -> None:
        size = 0 if name.startswith("^") else self.graph.tensor[name].size_bytes
        if not name.startswith("^"):
            self.began[target].append((now, Transfer(name, target, is_received=True)))
        if self.streams.waits(source, target, size):
            self.held[target].append(_Copy(asked, name, source, size))
            return
        self._copy(name, source, target, size, now)

    def _copy(self, name: str, source: int, target: int, size: int, now: float) -> None:
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
            source = self.device[self.position[self.graph.tensor[name].producer]]
            self.began[source].append((now, Transfer(name, device, is_received=False)))
        for index in self._satisfied(self.remote[name][device], now):
            self._becomes_ready(index, now)
