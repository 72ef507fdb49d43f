"""Simulate one step in stages and microbatches: programs in the order of a schedule, serial devices, serial links.

First what runs once, then forwards and backwards as each device's order has them, then, when all have ended, updates.
A value crosses to each device that needs it once, when it is made, on a link that carries one at a time in each
direction; transfers slow each other down where they share what lies on their way. Microbatches that are not all equal
are taken to be as large as the largest.

Bytes are held as the emitted step holds them: what a program makes until the last program that reads it has ended, what
it takes for itself while it runs, sums of gradients beside the sums they are made of, sparse gradients of every
microbatch until the update, the batch from the start.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from cost_models.communication import transfer_seconds
from cost_models.network import Arrival, Network
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import HeldTensor, Send
from partitioner.ir.stage_programs import Gather, ProgramKind, StagePrograms
from partitioner.planner.simulate.dataflow import Dataflow, Value, Wires, arguments
from partitioner.planner.simulate.memory_ledger import MemoryLedger, variable_bytes
from partitioner.planner.simulate.memory_use import largest_tensors, memory_use
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.planner.simulate.program_costs import StageCosts
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind, device_orders, merged_order

_WHOLE = -1

Call = tuple[int, int]
"""Index of a program, and the microbatch or `_WHOLE`."""
Sent = tuple[Value, int, int]
"""What is sent: a value, the microbatch or `_WHOLE`, and the device that it goes to."""


def simulate_stages(
    programs: StagePrograms,
    costed: CostedGraph,
    *,
    num_microbatches: int,
    schedule: ScheduleKind,
    wiring: Dataflow | None = None,
) -> PipelineSchedule:
    """Run one step on paper.

    Args:
        programs: The stage programs; their devices are those of the topology.
        costed: The graph at the size of the (largest) microbatch, with its costs.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        wiring: `Dataflow(programs, StageCosts(costed))`, to save its work when one is simulated several times.

    Raises:
        UsageError: The schedule does not go with the stages or the number of microbatches.
    """
    orders = device_orders(schedule, programs.stages, num_microbatches, training=bool(programs.backward))
    order = merged_order(orders, len(programs.stages))
    return _Simulation(wiring or Dataflow(programs, StageCosts(costed)), num_microbatches).run(order)


class _Simulation:
    def __init__(self, wiring: Dataflow, num_microbatches: int) -> None:
        self.wiring, self.programs, self.costed = wiring, wiring.programs, wiring.costs.costed
        self.num_microbatches = num_microbatches
        self.names = [placed.name for placed in self.costed.topology.devices]
        self.free = [0.0] * len(self.names)
        self.busy = [0.0] * len(self.names)
        self.network = Network[Sent](self.costed.topology)
        self.arrival: dict[Sent, float] = {}
        self.kept: dict[Sent, Sequence[tuple[Value, int]]] = {}
        self.ledgers = [MemoryLedger() for _ in self.names]
        self.sends: list[Send] = []
        self.timeline: list[PlannedAction] = []
        self.stage_seconds = [0.0] * len(self.programs.stages)
        self.ends = [0.0] * len(wiring.all)
        # Calls of each device, as start and end; and for what was sent, how many on its target must end before.
        self.spans: list[list[tuple[float, float]]] = [[] for _ in self.names]
        self.calls_before: dict[Sent, int] = {}
        self.clocks = [[0] * len(self.names) for _ in self.names]
        self.clock_of: dict[tuple[Value, int], list[int]] = {}
        self.called: set[int] = set()
        self.gate = 0.0

    def run(self, order: Sequence[Action]) -> PipelineSchedule:
        first_forward = len(self.programs.once)
        num_stages = len(self.programs.stages)
        first_update = first_forward + len(self.programs.forward) + len(self.programs.backward)
        for value, device in arguments(self.wiring):
            for part in range(self.num_microbatches):
                size = self.wiring.size_bytes(value, device)
                self.ledgers[device].take((value, part), 0.0, size)
        calls = [(index, _WHOLE) for index in range(first_forward)]
        names: dict[Call, Action] = {}
        for action in order:
            # Backward programs are listed from the last stage to the first.
            offset = action.stage if action.kind is ActionKind.FORWARD else 2 * num_stages - 1 - action.stage
            calls.append((first_forward + offset, action.microbatch))
            names[calls[-1]] = action
        for call in self._in_time(calls):
            start, end = self._call(*call)
            if (action := names.get(call)) is not None:
                self.stage_seconds[action.stage] += end - start
                self._record(str(action), self.wiring.wires[call[0]].device, start, end)
        self.gate = max(self.free)
        self._gather()
        for index, part in self._in_time([(index, _WHOLE) for index in range(first_update, len(self.wiring.all))]):
            start, end = self._call(index, part)
            self._record("U", self.wiring.wires[index].device, start, end)
        while self.network.next_seconds < math.inf:
            self._go_on()
        return self._result(max(self.free))

    def _in_time(self, calls: Sequence[Call]) -> Iterator[Call]:
        """The calls in an order in which each can be made, once the one before was.

        Each device keeps to the order given. Where transfers share nothing the calls do too; else they come by their
        ends, so that what they send sets out in the order of time.
        """
        if not self.network.shares:
            yield from calls
            return
        queues: dict[int, deque[Call]] = {}
        for call in calls:
            queues.setdefault(self.wiring.wires[call[0]].device, deque()).append(call)
        left = Counter(index for index, _ in calls)
        while queues:
            ends = {}
            for device, (call, *_) in queues.items():
                if (start := self._start(*call)) is not None:
                    ends[device] = start + self.wiring.wires[call[0]].cost.seconds
            first = min(ends, key=lambda device: ends[device], default=None)
            if first is None or self.network.next_seconds <= ends[first]:
                self._go_on()
                continue
            index, part = queues[first].popleft()
            if not queues[first]:
                del queues[first]
            yield index, part
            left[index] -= 1
            if not left[index]:
                for entry in self.wiring.gathered():
                    if entry[2] == index:
                        self._send_gathered(*entry)

    def _go_on(self) -> None:
        for arrival in self.network.arrivals():
            self._sent(arrival)

    def _record(self, action: str, device: int, start: float, end: float) -> None:
        self.timeline.append(
            PlannedAction(action=action, device=self.names[device], start_seconds=start, end_seconds=end)
        )

    def _told(self, index: int, reader: int) -> float:
        """When the device of one program knows that another has ended."""
        source, target = self.wiring.wires[index].device, self.wiring.wires[reader].device
        link = self.costed.topology.link(source, target)
        return self.ends[index] + (transfer_seconds(0, link) if source != target else 0.0)

    def _start(self, index: int, part: int) -> float | None:
        """When a call can be made, its device being through with those before; None while that is not known."""
        wires = self.wiring.wires[index]
        device, starts = wires.device, [self.free[wires.device]]
        for value in wires.arrives:
            sent = value, _WHOLE if value.whole else part, device
            if sent not in self.arrival:
                return None
            starts.append(self.arrival[sent])
        if part > 0:
            starts += [self.arrival.get((value, part - 1, device), 0.0) for value in wires.before]
        if self.wiring.all[index].kind is ProgramKind.UPDATE:
            starts.append(self.gate)
            for number in self.wiring.all[index].waits_for:
                other = len(self.wiring.all) - len(self.programs.update) + number
                if other not in self.called:
                    return None
                starts.append(self._told(other, index))
        return max(starts)

    def _call(self, index: int, part: int) -> tuple[float, float]:
        wires = self.wiring.wires[index]
        device, ledger = wires.device, self.ledgers[wires.device]
        start = self._start(index, part)
        assert start is not None
        end = start + wires.cost.seconds
        self.free[device] = end
        self.busy[device] += wires.cost.seconds
        sums = sum(wires.sums.values())
        over_time = wires.cost.over_time
        parts = [start + (end - start) * part / len(over_time) for part in range(len(over_time))]
        for since, until, size in zip(parts, [*parts[1:], end], over_time, strict=True):
            ledger.passing.append((since, until, max(0, size - sums), min(size, sums), index))
        for value in wires.reads:
            ledger.use((value, _WHOLE if value.whole else part), end)
        for value in wires.before:
            ledger.use((value, part - 1), end)
        self._make(wires, part, end)
        self.ends[index] = end
        self.called.add(index)
        clock = self._clock(wires, part)
        self.spans[device].append((start, end))
        for value, targets, buffer in wires.sends:
            for target in targets:
                self.calls_before[value, part, target] = clock[target]
                self._send((value, part, target), device, self.wiring.size_bytes(value, target), end)
                if buffer is not None:
                    self._keep([(buffer, _WHOLE if buffer.whole else part)], device, (value, part, target))
        return start, end

    def _clock(self, wires: Wires, part: int) -> list[int]:
        """How many calls of each device have ended, at the least, when a call of this program has."""
        clock = self.clocks[wires.device]
        for value in wires.arrives:
            made = self.clock_of.get((value, _WHOLE if value.whole else part), clock)
            clock[:] = map(max, clock, made)
        clock[wires.device] += 1
        self.clock_of.update(((value, part), list(clock)) for value, _, _ in wires.sends)
        return clock

    def _make(self, wires: Wires, part: int, end: float) -> None:
        ledger = self.ledgers[wires.device]
        gathered = self.programs.gathered
        for value, size in wires.makes.items():
            ledger.take((value, part), end, size, is_gradient=value.tensor in gathered)
        for value, size in wires.sums.items():
            if (value, _WHOLE) not in ledger.held:
                ledger.take((value, _WHOLE), end, size, is_gradient=True)
            ledger.use((value, _WHOLE), end)

    def _send(self, sent: Sent, source: int, size: int, ready: float) -> None:
        arrival = self.network.send(sent, source, sent[2], size, ready)
        if arrival is not None:
            self._sent(arrival)

    def _sent(self, arrival: Arrival[Sent]) -> None:
        value, part, target = arrival.key
        size, start, end = round(arrival.size_bytes), arrival.start_seconds, arrival.end_seconds
        self.arrival[arrival.key] = end
        self.ledgers[target].take(
            (value, part), start, size, is_gradient=value.whole and value.tensor in self.programs.gathered
        )
        self.ledgers[target].use((value, part), end)
        for key in self.kept.pop(arrival.key, ()):
            self.ledgers[arrival.source].use(key, end)
        self.sends.append(
            Send(
                tensor=value.tensor,
                source=self.names[arrival.source],
                target=self.names[target],
                size_bytes=size,
                start_seconds=start,
                end_seconds=end,
            )
        )

    def _keep(self, keys: Sequence[tuple[Value, int]], device: int, sent: Sent) -> None:
        """Hold buffers on a device until what is sent of them has arrived."""
        if sent not in self.arrival:
            self.kept[sent] = keys
            return
        for key in keys:
            self.ledgers[device].use(key, self.arrival[sent])

    def _gathered_bytes(self, tensor: str, how: Gather, device: int) -> int:
        is_joined = how is Gather.CONCAT and self.num_microbatches > 1
        return self.wiring.size_bytes(Value(tensor, True), device) * (self.num_microbatches if is_joined else 1)

    def _send_gathered(self, tensor: str, how: Gather, maker: int) -> None:
        device, whole = self.wiring.wires[maker].device, Value(tensor, True)
        for target in sorted(self.wiring.targets[whole] - {device}):
            size = self._gathered_bytes(tensor, how, device)
            self._send((whole, _WHOLE, target), device, size, self.ends[maker])

    def _gather(self) -> None:
        """Bring together what the microbatches gave, where it was made, and send it to who updates with it."""
        for name, how, maker in self.wiring.gathered():
            device = self.wiring.wires[maker].device
            ledger = self.ledgers[device]
            whole = Value(name, True)
            keys: list[tuple[Value, int]] = [(whole, _WHOLE)]
            if how is Gather.CONCAT and self.num_microbatches > 1:
                size = self._gathered_bytes(name, how, device)
                ledger.take((whole, _WHOLE), self.ends[maker], size, is_gradient=True)
                keys += [(Value(name, False), part) for part in range(self.num_microbatches)]
            elif how is not Gather.SUM:
                ledger.rename((Value(name, False), 0), (whole, _WHOLE))
            if not self.network.shares:
                self._send_gathered(name, how, maker)
            for target in sorted(self.wiring.targets[whole]):
                if target != device:
                    self._keep(keys, device, (whole, _WHOLE, target))
                    continue
                for key in keys:
                    ledger.use(key, self.gate)

    def _take_early(self) -> None:
        """Let what devices receive take memory from the call on before it comes, if it could come that early.

        How long calls take is not foreseen so well that it will not.
        """
        for (value, part, target), before in self.calls_before.items():
            entry = self.ledgers[target].held.get((value, part))
            spans = self.spans[target]
            if entry is not None and spans:
                running = spans[max(bisect_left(spans, (entry[0], 0.0)) - 1, 0)][0]
                could = spans[before - 1][1] if before else 0.0
                entry[0] = min(entry[0], max(running, could))

    def _result(self, end: float) -> PipelineSchedule:
        self._take_early()
        for tensor in self.costed.graph.outputs:
            self._return(tensor, end)
        for state in self.programs.states:
            self._hold(state.written, [self.num_microbatches - 1], end)
        peak, memory = {}, {}
        fixed_bytes = variable_bytes(self.costed, self.programs)
        for index, (name, variables, ledger) in enumerate(zip(self.names, fixed_bytes, self.ledgers, strict=True)):
            # Replicas that share a device share its variables; of everything else each has its own.
            sharing = self.costed.num_sharing(index)
            moments = [(s, sharing * a, sharing * g) for s, a, g in ledger.timeline()]
            when, activation, gradient = max(moments, key=lambda moment: moment[1] + moment[2], default=(0.0, 0, 0))
            largest = self._largest(ledger, when, sharing)
            peak[name] = memory_use(variables, activation, gradient, seconds=when, largest=largest)
            fixed = sum(variables.values())
            memory[name] = ((0.0, fixed),) if not moments else tuple((s, fixed + a + g) for s, a, g in moments)
        return PipelineSchedule(
            step_seconds=end,
            busy_seconds=dict(zip(self.names, self.busy, strict=True)),
            stage_seconds=tuple(self.stage_seconds),
            peak=peak,
            timeline=tuple(self.timeline),
            sends=tuple(self.sends),
            memory=memory,
        )

    def _largest(self, ledger: MemoryLedger, seconds: float, sharing: int) -> list[HeldTensor]:
        """The tensors that take most of a device's memory at a moment."""
        buffers = [buffer for value, size in ledger.held_at(seconds) for buffer in self.wiring.named(value, size)]
        for index in ledger.working_at(seconds):
            buffers += self.wiring.wires[index].cost.largest
        return largest_tensors(sharing * buffers)

    def _return(self, tensor: str, end: float) -> None:
        """Hold a result until the step ends: rows of all microbatches, once all are there, in one buffer."""
        parts = range(self.num_microbatches)
        maker = self.wiring.maker.get(tensor)
        spec = self.costed.graph.tensor[tensor].spec
        if maker is None or len(parts) == 1 or not spec.shape or not self.wiring.wires[maker].per_microbatch:
            self._hold(tensor, parts, end)
            return
        device = self.wiring.wires[maker].device
        joined = Value(tensor, True)
        size = self.num_microbatches * self.wiring.size_bytes(joined, device)
        self.ledgers[device].take((joined, _WHOLE), self.ends[maker], size)
        both = math.nextafter(self.ends[maker], math.inf)  # for a moment there are both
        self.ledgers[device].use((joined, _WHOLE), max(both, end))
        self._hold(tensor, parts, both)

    def _hold(self, tensor: str, parts: Sequence[int], end: float) -> None:
        maker = self.wiring.maker.get(tensor)
        if maker is None:
            return
        wires = self.wiring.wires[maker]
        buffer = self.wiring.buffer(Value(tensor, not wires.per_microbatch), wires.device)
        if buffer is not None:
            for part in [_WHOLE] if buffer.whole else parts:
                self.ledgers[wires.device].use((buffer, part), end)
