"""Memory of a step in stages and microbatches: buffers of calls, transfers and gathered gradients on each device.

Bytes are held as in the emitted step: outputs of a program until their last reader has ended, its temporary memory
while it runs, new sums of gradients beside the old sums, sparse gradients of every microbatch until the update, and the
batch from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cost_models.network import Arrival
from partitioner.ir.schedule import HeldTensor, MemoryUse
from partitioner.ir.stage_programs import Gather
from partitioner.planner.simulate.call_clocks import WHOLE, CallClocks, Sent
from partitioner.planner.simulate.dataflow import Dataflow, Value, Wires, arguments
from partitioner.planner.simulate.memory_ledger import MemoryLedger, variable_bytes
from partitioner.planner.simulate.memory_use import largest_tensors, memory_use


class PipelineMemory:
    """The ledgers of all devices while a step is simulated."""

    def __init__(self, wiring: Dataflow, num_microbatches: int) -> None:
        self.wiring, self.programs, self.costed = wiring, wiring.programs, wiring.costs.costed
        self.num_microbatches = num_microbatches
        self.ledgers = [MemoryLedger() for _ in self.costed.topology.devices]
        self.clocks = CallClocks(wiring)
        self.kept: dict[Sent, Sequence[tuple[Value, int]]] = {}
        for value, device in arguments(wiring):
            for part in range(num_microbatches):
                self.ledgers[device].take((value, part), 0.0, wiring.size_bytes(value, device))

    def call(self, index: int, part: int, start: float, end: float) -> None:
        """Record the call of a program for a microbatch: its temporary memory, the buffers it reads and makes."""
        wires = self.wiring.wires[index]
        ledger = self.ledgers[wires.device]
        sums = sum(wires.sums.values())
        over_time = wires.cost.over_time
        parts = [start + (end - start) * part / len(over_time) for part in range(len(over_time))]
        for since, until, size in zip(parts, [*parts[1:], end], over_time, strict=True):
            ledger.passing.append((since, until, max(0, size - sums), min(size, sums), index))
        for value in wires.reads:
            ledger.use((value, WHOLE if value.whole else part), end)
        for value in wires.before:
            ledger.use((value, part - 1), end)
        self._make(wires, part, end)
        self.clocks.call(wires, part, start, end)

    def _make(self, wires: Wires, part: int, end: float) -> None:
        ledger = self.ledgers[wires.device]
        gathered = self.programs.gathered
        for value, size in wires.makes.items():
            ledger.take((value, part), end, size, is_gradient=value.tensor in gathered)
        for value, size in wires.sums.items():
            if (value, WHOLE) not in ledger.held:
                ledger.take((value, WHOLE), end, size, is_gradient=True)
            ledger.use((value, WHOLE), end)

    def keep(self, keys: Sequence[tuple[Value, int]], device: int, sent: Sent, arrives: float | None) -> None:
        """Hold buffers on a device until a transfer from them has arrived at `arrives`; None while that is open."""
        if arrives is None:
            self.kept[sent] = keys
            return
        for key in keys:
            self.ledgers[device].use(key, arrives)

    def receive(self, arrival: Arrival[Sent]) -> None:
        """Record an arrival: its target holds a buffer, and the source may free the buffer it was sent from."""
        value, part, target = arrival.key
        self.ledgers[target].take(
            (value, part),
            arrival.start_seconds,
            round(arrival.size_bytes),
            is_gradient=value.whole and value.tensor in self.programs.gathered,
        )
        self.ledgers[target].use((value, part), arrival.end_seconds)
        for key in self.kept.pop(arrival.key, ()):
            self.ledgers[arrival.source].use(key, arrival.end_seconds)

    def gathered_bytes(self, tensor: str, how: Gather, device: int) -> int:
        """Bytes of the gathered value of all microbatches."""
        is_joined = how is Gather.CONCAT and self.num_microbatches > 1
        return self.wiring.size_bytes(Value(tensor, True), device) * (self.num_microbatches if is_joined else 1)

    def gather(self, tensor: str, how: Gather, device: int, made: float) -> list[tuple[Value, int]]:
        """Gather the values of all microbatches; returns the buffers needed until the result is used or has arrived."""
        ledger, whole = self.ledgers[device], Value(tensor, True)
        keys: list[tuple[Value, int]] = [(whole, WHOLE)]
        if how is Gather.CONCAT and self.num_microbatches > 1:
            ledger.take((whole, WHOLE), made, self.gathered_bytes(tensor, how, device), is_gradient=True)
            keys += [(Value(tensor, False), part) for part in range(self.num_microbatches)]
        elif how is not Gather.SUM:
            ledger.rename((Value(tensor, False), 0), (whole, WHOLE))
        return keys

    def close(self, ends: Sequence[float], step_end: float) -> None:
        """End the step: results and carried state are held until then.

        Args:
            ends: When the last call of each program ended.
            step_end: When the step ended.
        """
        self._take_early()
        for tensor in self.costed.graph.outputs:
            self._return(tensor, ends, step_end)
        for state in self.programs.states:
            self._hold(state.written, [self.num_microbatches - 1], step_end)

    def _take_early(self) -> None:
        """Allocate received values at the earliest time at which they may arrive."""
        for sent in self.clocks.sent():
            value, part, target = sent
            entry = self.ledgers[target].held.get((value, part))
            if entry is not None:
                entry[0] = self.clocks.earliest(sent, entry[0])

    def _return(self, tensor: str, ends: Sequence[float], step_end: float) -> None:
        """Hold a result until the step ends: the rows of all microbatches are joined in one buffer."""
        parts = range(self.num_microbatches)
        maker = self.wiring.maker.get(tensor)
        spec = self.costed.graph.tensor[tensor].spec
        if maker is None or len(parts) == 1 or not spec.shape or not self.wiring.wires[maker].per_microbatch:
            self._hold(tensor, parts, step_end)
            return
        device = self.wiring.wires[maker].device
        joined = Value(tensor, True)
        size = self.num_microbatches * self.wiring.size_bytes(joined, device)
        self.ledgers[device].take((joined, WHOLE), ends[maker], size)
        both = math.nextafter(ends[maker], math.inf)  # the parts and the joined buffer exist together for a moment
        self.ledgers[device].use((joined, WHOLE), max(both, step_end))
        self._hold(tensor, parts, both)

    def _hold(self, tensor: str, parts: Sequence[int], until: float) -> None:
        maker = self.wiring.maker.get(tensor)
        if maker is None:
            return
        wires = self.wiring.wires[maker]
        buffer = self.wiring.buffer(Value(tensor, not wires.per_microbatch), wires.device)
        if buffer is not None:
            for part in [WHOLE] if buffer.whole else parts:
                self.ledgers[wires.device].use((buffer, part), until)

    def uses(self) -> tuple[dict[str, MemoryUse], dict[str, tuple[tuple[float, int], ...]]]:
        """By device: peak memory; and (seconds, bytes held from then on), ascending."""
        peak, memory = {}, {}
        fixed_bytes = variable_bytes(self.costed, self.programs)
        names = [placed.name for placed in self.costed.topology.devices]
        for index, (name, variables, ledger) in enumerate(zip(names, fixed_bytes, self.ledgers, strict=True)):
            # Replicas that share a device share its variables; each has its own copy of all other tensors.
            sharing = self.costed.num_sharing(index)
            moments = [(s, sharing * a, sharing * g) for s, a, g in ledger.timeline()]
            when, activation, gradient = max(moments, key=lambda moment: moment[1] + moment[2], default=(0.0, 0, 0))
            largest = self._largest(ledger, when, sharing)
            peak[name] = memory_use(variables, activation, gradient, seconds=when, largest=largest)
            fixed = sum(variables.values())
            memory[name] = ((0.0, fixed),) if not moments else tuple((s, fixed + a + g) for s, a, g in moments)
        return peak, memory

    def _largest(self, ledger: MemoryLedger, seconds: float, sharing: int) -> list[HeldTensor]:
        """The tensors that take most of a device's memory at a moment."""
        buffers = [buffer for value, size in ledger.held_at(seconds) for buffer in self.wiring.named(value, size)]
        for index in ledger.working_at(seconds):
            buffers += self.wiring.wires[index].cost.largest
        return largest_tensors(sharing * buffers)
