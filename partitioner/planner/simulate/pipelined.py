"""Simulate one step in stages and microbatches: programs in the order of a schedule, serial devices, serial links.

First programs that run once, then forwards and backwards in each device's order, then updates when all have ended.
A value crosses once to each device that needs it, when it is made, on a link that carries one value at a time in each
direction; what devices of other hosts need is handed on from host to host (`stages/relays.py`). Transfers slow each
other down where they share links. A copy to a GPU first waits for what the GPU has been given (`streams.py`).
Microbatches of unequal size are taken to be as large as the largest.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from cost_models.communication import transfer_seconds
from cost_models.network import Arrival, Network
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import Send
from partitioner.ir.stage_programs import Gather, ProgramKind, StagePrograms
from partitioner.planner.simulate.call_clocks import WHOLE, Sent
from partitioner.planner.simulate.dataflow import Dataflow, Value
from partitioner.planner.simulate.pipelined_memory import PipelineMemory
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.planner.simulate.program_costs import StageCosts
from partitioner.planner.simulate.streams import Host, Streams
from partitioner.stages.actions import KIND_OF_CALLS, Action
from partitioner.stages.schedules import ScheduleKind
from partitioner.stages.step_order import step_order

Call = tuple[int, int]
"""Index of a program, and the microbatch or `WHOLE`."""


def simulate_stages(
    programs: StagePrograms,
    costed: CostedGraph,
    *,
    num_microbatches: int,
    schedule: ScheduleKind,
    wiring: Dataflow | None = None,
) -> PipelineSchedule:
    """Simulate one step.

    Args:
        programs: The stage programs; their devices are those of the topology.
        costed: The graph at the size of the (largest) microbatch, with its costs.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        wiring: `Dataflow(programs, StageCosts(costed))`, to save its work where a pipeline is simulated several times.

    Raises:
        UsageError: The schedule does not go with the stages or the number of microbatches.
    """
    order = step_order(programs, schedule, num_microbatches)
    return _Simulation(wiring or Dataflow(programs, StageCosts(costed)), num_microbatches).run(order)


class _Simulation:
    def __init__(self, wiring: Dataflow, num_microbatches: int) -> None:
        self.wiring, self.programs, self.costed = wiring, wiring.programs, wiring.costs.costed
        self.num_microbatches = num_microbatches
        self.names = [placed.name for placed in self.costed.topology.devices]
        self.free = [0.0] * len(self.names)
        self.busy = [0.0] * len(self.names)
        self.network = Network[Sent](self.costed.topology)
        self.streams = Streams(self.costed.topology)
        self.is_in_time = self.network.shares or self.streams.any_wait or wiring.hands_on
        self.hosts = [Host() for _ in self.names]
        self.queues: dict[int, deque[Call]] = {}
        self.held: list[tuple[float, int, Sent, int, int]] = []  # copies that wait: when they begin, and their number
        self._sent_count = 0
        self.arrival: dict[Sent, float] = {}
        self.memory = PipelineMemory(wiring, num_microbatches)
        self.sends: list[Send] = []
        self.timeline: list[PlannedAction] = []
        self.stage_seconds = [0.0] * len(self.programs.stages)
        self.ends = [0.0] * len(wiring.all)
        self.called: set[int] = set()
        self.changed: set[int] = set()  # devices whose next call may start at another time than was known
        self.gate = 0.0

    def run(self, order: Sequence[Action]) -> PipelineSchedule:
        programs = list(enumerate(self.wiring.all))
        called = {(KIND_OF_CALLS[p.kind], p.stage): index for index, p in programs if p.kind in KIND_OF_CALLS}
        names = {(called[action.kind, action.stage], action.microbatch): action for action in order}
        calls = [*((index, WHOLE) for index, p in programs if p.kind is ProgramKind.ONCE), *names]
        for call in self._in_time(calls):
            start, end = self._call(*call)
            if (action := names.get(call)) is not None:
                self.stage_seconds[action.stage] += end - start
                self._record(str(action), self.wiring.wires[call[0]].device, start, end)
        self.gate = max(self.free)
        self._gather()
        updates = [(index, WHOLE) for index, p in programs if p.kind is ProgramKind.UPDATE]
        for index, part in self._in_time(updates):
            start, end = self._call(index, part)
            self._record("U", self.wiring.wires[index].device, start, end)
        while self._next_seconds() < math.inf:
            self._deliver()
        return self._result(max(self.free))

    def _in_time(self, calls: Sequence[Call]) -> Iterator[Call]:
        """The calls in an order in which each can start once its predecessor has been simulated.

        Each device keeps to the given order. Where transfers share no links and wait for no device, so do all calls;
        otherwise calls are in the order of their ends, so that transfers start in the order of time.
        """
        if not self.is_in_time:
            yield from calls
            return
        queues, ends = self.queues, dict[int, float]()
        for call in calls:
            queues.setdefault(self.wiring.wires[call[0]].device, deque()).append(call)
        left = Counter(index for index, _ in calls)
        self.changed.update(queues)
        while queues:
            ends.update((device, self._end(*queues[device][0])) for device in self.changed.intersection(queues))
            self.changed.clear()
            first = min(queues, key=ends.__getitem__)
            if self._next_seconds() <= ends[first]:
                self._deliver()
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

    def _next_seconds(self) -> float:
        return min(self.network.next_seconds, self.held[0][0] if self.held else math.inf)

    def _deliver(self) -> None:
        if self.held and self.held[0][0] <= self.network.next_seconds:
            now, _, sent, source, size = heapq.heappop(self.held)
            self._copy(sent, source, size, now)
            return
        for arrival in self.network.arrivals():
            self._sent(arrival)

    def _record(self, action: str, device: int, start: float, end: float) -> None:
        self.timeline.append(
            PlannedAction(action=action, device=self.names[device], start_seconds=start, end_seconds=end)
        )

    def _notified(self, index: int, reader: int) -> float:
        """When the device of program `reader` is notified that program `index` has ended."""
        source, target = self.wiring.wires[index].device, self.wiring.wires[reader].device
        link = self.costed.topology.link(source, target)
        return self.ends[index] + (transfer_seconds(0, link) if source != target else 0.0)

    def _end(self, index: int, part: int) -> float:
        """When a call can end, after earlier ones of its device; infinite while an input has no arrival time yet."""
        inputs, wires = self._inputs(index, part), self.wiring.wires[index]
        return math.inf if inputs is None else max(inputs, self.free[wires.device]) + wires.cost.seconds

    def _inputs(self, index: int, part: int) -> float | None:
        """When all that a call waits for from other devices is there; None while that is not known."""
        wires = self.wiring.wires[index]
        device, starts = wires.device, [0.0]
        for value in wires.arrives:
            sent = value, WHOLE if value.whole else part, device
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
                starts.append(self._notified(other, index))
        return max(starts)

    def _call(self, index: int, part: int) -> tuple[float, float]:
        wires = self.wiring.wires[index]
        device = wires.device
        inputs = self._inputs(index, part)
        assert inputs is not None
        start = max(inputs, self.free[device])
        end = start + wires.cost.seconds
        asked = min(end, self.hosts[device].gives(inputs, wires.cost.host_seconds, end))
        self.free[device] = end
        self.busy[device] += wires.cost.seconds
        self.memory.call(index, part, start, end)
        self.ends[index] = end
        self.called.add(index)
        # Updates wait for those of other devices.
        self.changed.update(self.queues if self.wiring.all[index].kind is ProgramKind.UPDATE else [device])
        for value, _, buffer in wires.sends:
            held = [(buffer, WHOLE if buffer.whole else part)] if buffer is not None else []
            self._hand((value, part), device, held, end, asked)
        return start, end

    def _hand(
        self,
        made: tuple[Value, int],
        device: int,
        held: Sequence[tuple[Value, int]],
        ready: float,
        asked: float,
    ) -> None:
        """Send a value of a microbatch from a device that has it to those that get it from there."""
        for target in self.wiring.handed.get((made[0], device), ()):
            sent = *made, target
            self._send(sent, device, self.wiring.size_bytes(made[0], target), ready, asked)
            self._keep(held, device, sent)

    def _send(self, sent: Sent, source: int, size: int, ready: float, asked: float) -> None:
        if not self.streams.waits(source, sent[2], size):
            self._copy(sent, source, size, ready)
            return
        self._sent_count += 1
        begins = max(ready, self._finished(sent[2], asked))
        heapq.heappush(self.held, (begins, self._sent_count, sent, source, size))

    def _finished(self, device: int, asked: float) -> float:
        """When a device has finished the calls that its host has given it by then."""
        host = self.hosts[device]
        end, given = host.finished(asked), host.free
        for index, part in self.queues.get(device, ()):
            inputs = self._inputs(index, part)
            if inputs is None or max(inputs, given) > asked:
                break
            cost = self.wiring.wires[index].cost
            end, given = max(end, inputs) + cost.seconds, max(inputs, given) + cost.host_seconds
        return end

    def _copy(self, sent: Sent, source: int, size: int, now: float) -> None:
        arrival = self.network.send(sent, source, sent[2], size, now)
        if arrival is not None:
            self._sent(arrival)

    def _sent(self, arrival: Arrival[Sent]) -> None:
        value, part, target = arrival.key
        self.arrival[arrival.key] = arrival.end_seconds
        self.changed.add(target)
        self.memory.receive(arrival)
        self.sends.append(
            Send(
                tensor=value.tensor,
                source=self.names[arrival.source],
                target=self.names[target],
                size_bytes=round(arrival.size_bytes),
                start_seconds=arrival.start_seconds,
                end_seconds=arrival.end_seconds,
            )
        )
        self._hand((value, part), target, [(value, part)], arrival.end_seconds, arrival.end_seconds)

    def _keep(self, keys: Sequence[tuple[Value, int]], device: int, sent: Sent) -> None:
        """Hold buffers on a device until a transfer from them has arrived."""
        self.memory.keep(keys, device, sent, self.arrival.get(sent))

    def _send_gathered(self, tensor: str, how: Gather, maker: int) -> None:
        device, whole = self.wiring.wires[maker].device, Value(tensor, True)
        for target in sorted(self.wiring.targets[whole] - {device}):
            size = self.memory.gathered_bytes(tensor, how, device)
            self._send((whole, WHOLE, target), device, size, self.ends[maker], self.ends[maker])

    def _gather(self) -> None:
        """Gather the values of all microbatches where they were made, and send them to the update programs."""
        for name, how, maker in self.wiring.gathered():
            device = self.wiring.wires[maker].device
            whole = Value(name, True)
            keys = self.memory.gather(name, how, device, self.ends[maker])
            if not self.is_in_time:
                self._send_gathered(name, how, maker)
            for target in sorted(self.wiring.targets[whole]):
                if target != device:
                    self._keep(keys, device, (whole, WHOLE, target))
                    continue
                for key in keys:
                    self.memory.ledgers[device].use(key, self.gate)

    def _result(self, end: float) -> PipelineSchedule:
        self.memory.close(self.ends, end)
        peak, memory = self.memory.uses()
        return PipelineSchedule(
            step_seconds=end,
            busy_seconds=dict(zip(self.names, self.busy, strict=True)),
            stage_seconds=tuple(self.stage_seconds),
            peak=peak,
            timeline=tuple(self.timeline),
            sends=tuple(self.sends),
            memory=memory,
        )
