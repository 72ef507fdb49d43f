"""Simulate one step in stages and microbatches: programs in the order of a schedule, serial devices, serial links.

First what runs once, then forwards and backwards as each device's order has them, then, when all have ended, updates.
A value crosses to each device that needs it once, when it is made, on a link that carries one at a time in each
direction. Microbatches that are not all equal are taken to be as large as the largest.

Bytes are held as the emitted step holds them: what a program makes until the last program that reads it has ended, what
it takes for itself while it runs, sums of gradients beside the sums they are made of, sparse gradients of every
microbatch until the update, the batch from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.communication import transfer_seconds
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import PlannedAction
from partitioner.ir.schedule import Send
from partitioner.ir.stage_programs import Gather, StagePrograms
from partitioner.planner.stage_costs import StageCosts
from partitioner.planner.stage_memory import MemoryLedger, memory_use, variable_bytes
from partitioner.planner.stage_wiring import StageWiring, Value, Wires, arguments
from partitioner.planner.staged_schedule import StagedSchedule
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind, device_orders, merged_order

_WHOLE = -1


def simulate_stages(
    programs: StagePrograms,
    costed: CostedGraph,
    *,
    num_microbatches: int,
    schedule: ScheduleKind,
    wiring: StageWiring | None = None,
) -> StagedSchedule:
    """Run one step on paper.

    Args:
        programs: The stage programs; their devices are those of the topology.
        costed: The graph at the size of the (largest) microbatch, with its costs.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        wiring: `StageWiring(programs, StageCosts(costed))`, to save its work when one is simulated several times.

    Raises:
        UsageError: The schedule does not go with the stages or the number of microbatches.
    """
    orders = device_orders(schedule, programs.stages, num_microbatches, training=bool(programs.backward))
    order = merged_order(orders, len(programs.stages))
    return _Simulation(wiring or StageWiring(programs, StageCosts(costed)), num_microbatches).run(order)


class _Simulation:
    def __init__(self, wiring: StageWiring, num_microbatches: int) -> None:
        self.wiring, self.programs, self.costed = wiring, wiring.programs, wiring.costs.costed
        self.num_microbatches = num_microbatches
        self.names = [placed.name for placed in self.costed.topology.devices]
        self.free = [0.0] * len(self.names)
        self.busy = [0.0] * len(self.names)
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrival: dict[tuple[Value, int, int], float] = {}
        self.ledgers = [MemoryLedger() for _ in self.names]
        self.sends: list[Send] = []
        self.timeline: list[PlannedAction] = []
        self.stage_seconds = [0.0] * len(self.programs.stages)
        self.ends = [0.0] * len(wiring.all)

    def run(self, order: Sequence[Action]) -> StagedSchedule:
        first_forward = len(self.programs.once)
        num_stages = len(self.programs.stages)
        first_update = first_forward + len(self.programs.forward) + len(self.programs.backward)
        for value, device in arguments(self.wiring):
            for part in range(self.num_microbatches):
                size = self.wiring.size_bytes(value, device)
                self.ledgers[device].take((value, part), 0.0, size)
        for index in range(first_forward):
            self._call(index, _WHOLE)
        for action in order:
            # Backward programs are listed from the last stage to the first.
            offset = action.stage if action.kind is ActionKind.FORWARD else 2 * num_stages - 1 - action.stage
            start, end = self._call(first_forward + offset, action.microbatch)
            self.stage_seconds[action.stage] += end - start
            self._record(str(action), self.wiring.wires[first_forward + offset].device, start, end)
        gate = max(self.free)
        self._gather()
        for index in range(first_update, len(self.wiring.all)):
            waits = [(first_update + other) for other in self.wiring.all[index].waits_for]
            start, end = self._call(index, _WHOLE, after=max([gate, *(self._told(other, index) for other in waits)]))
            self._record("U", self.wiring.wires[index].device, start, end)
        return self._result(max(self.free))

    def _record(self, action: str, device: int, start: float, end: float) -> None:
        self.timeline.append(
            PlannedAction(action=action, device=self.names[device], start_seconds=start, end_seconds=end)
        )

    def _told(self, index: int, reader: int) -> float:
        """When the device of one program knows that another has ended."""
        source, target = self.wiring.wires[index].device, self.wiring.wires[reader].device
        link = self.costed.topology.link(source, target)
        return self.ends[index] + (transfer_seconds(0, link) if source != target else 0.0)

    def _call(self, index: int, part: int, *, after: float = 0.0) -> tuple[float, float]:
        wires = self.wiring.wires[index]
        device, ledger = wires.device, self.ledgers[wires.device]
        arrived = [self.arrival[value, _WHOLE if value.whole else part, device] for value in wires.arrives]
        if part > 0:
            arrived += [self.arrival.get((value, part - 1, device), 0.0) for value in wires.before]
        start = max(self.free[device], after, *arrived) if arrived else max(self.free[device], after)
        end = start + wires.cost.seconds
        self.free[device] = end
        self.busy[device] += wires.cost.seconds
        sums = sum(wires.sums.values())
        ledger.passing.append((start, end, max(0, wires.cost.transient_bytes - sums), sums))
        for value in wires.reads:
            ledger.use((value, _WHOLE if value.whole else part), end)
        for value in wires.before:
            ledger.use((value, part - 1), end)
        self._make(wires, part, end)
        self.ends[index] = end
        for value, targets, buffer in wires.sends:
            for target in targets:
                sent = self._send(value, part, device, target, end, self.wiring.size_bytes(value, target))
                if buffer is not None:
                    ledger.use((buffer, _WHOLE if buffer.whole else part), sent)
        return start, end

    def _make(self, wires: Wires, part: int, end: float) -> None:
        ledger = self.ledgers[wires.device]
        gathered = self.programs.gathered
        for value, size in wires.makes.items():
            ledger.take((value, part), end, size, is_gradient=value.tensor in gathered)
        for value, size in wires.sums.items():
            if (value, _WHOLE) not in ledger.held:
                ledger.take((value, _WHOLE), end, size, is_gradient=True)
            ledger.use((value, _WHOLE), end)

    def _send(self, value: Value, part: int, source: int, target: int, ready: float, size: int) -> float:
        start = max(ready, self.link_free.get((source, target), 0.0))
        end = start + transfer_seconds(size, self.costed.topology.link(source, target))
        self.link_free[source, target] = end
        self.arrival[value, part, target] = end
        self.ledgers[target].take(
            (value, part), start, size, is_gradient=value.whole and value.tensor in self.programs.gathered
        )
        self.ledgers[target].use((value, part), end)
        self.sends.append(
            Send(
                tensor=value.tensor,
                source=self.names[source],
                target=self.names[target],
                size_bytes=size,
                start_seconds=start,
                end_seconds=end,
            )
        )
        return end

    def _gather(self) -> None:
        """Bring together what the microbatches gave, where it was made, and send it to who updates with it."""
        for name, how, maker in self.wiring.gathered():
            device = self.wiring.wires[maker].device
            ledger, ready = self.ledgers[device], self.ends[maker]
            whole = Value(name, True)
            keys: list[tuple[Value, int]] = [(whole, _WHOLE)]
            size = self.wiring.size_bytes(whole, device)
            if how is Gather.CONCAT and self.num_microbatches > 1:
                size *= self.num_microbatches
                ledger.take((whole, _WHOLE), ready, size, is_gradient=True)
                keys += [(Value(name, False), part) for part in range(self.num_microbatches)]
            elif how is not Gather.SUM:
                ledger.rename((Value(name, False), 0), (whole, _WHOLE))
            for target in sorted(self.wiring.targets[whole]):
                used = max(self.free)
                if target != device:
                    used = self._send(whole, _WHOLE, device, target, ready, size)
                for key in keys:
                    ledger.use(key, used)

    def _result(self, end: float) -> StagedSchedule:
        for value in self.costed.graph.outputs:
            self._hold(value, range(self.num_microbatches), end)
        for state in self.programs.states:
            self._hold(state.written, [self.num_microbatches - 1], end)
        peak, memory = {}, {}
        for name, variables, ledger in zip(
            self.names, variable_bytes(self.costed, self.programs), self.ledgers, strict=True
        ):
            moments = ledger.timeline()
            _, activation, gradient = max(moments, key=lambda moment: moment[1] + moment[2], default=(0.0, 0, 0))
            peak[name] = memory_use(variables, activation, gradient)
            fixed = sum(variables.values())
            memory[name] = ((0.0, fixed),) if not moments else tuple((s, fixed + a + g) for s, a, g in moments)
        return StagedSchedule(
            step_seconds=end,
            busy_seconds=dict(zip(self.names, self.busy, strict=True)),
            stage_seconds=tuple(self.stage_seconds),
            peak=peak,
            timeline=tuple(self.timeline),
            sends=tuple(self.sends),
            memory=memory,
        )

    def _hold(self, tensor: str, parts: Sequence[int], end: float) -> None:
        maker = self.wiring.maker.get(tensor)
        if maker is None:
            return
        wires = self.wiring.wires[maker]
        buffer = self.wiring.buffer(Value(tensor, not wires.per_microbatch), wires.device)
        if buffer is not None:
            for part in [_WHOLE] if buffer.whole else parts:
                self.ledgers[wires.device].use((buffer, part), end)
