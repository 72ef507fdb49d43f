"""The earliest time at which a device may allocate a value that it receives: when the sender can have sent it."""

from __future__ import annotations

from bisect import bisect_left

from partitioner.planner.simulate.dataflow import Dataflow, Value, Wires

WHOLE = -1
"""Stands for the number of a microbatch where a value or a call belongs to the whole step."""
Sent = tuple[Value, int, int]
"""A transfer: a value, the microbatch or `WHOLE`, and the target device."""


class CallClocks:
    """Vector clocks: for each device, how many calls of every device have certainly ended."""

    def __init__(self, wiring: Dataflow) -> None:
        num_devices = len(wiring.costs.costed.topology.devices)
        # Calls of each device, as start and end; for each transfer, how many calls of its target must end before.
        self._spans: list[list[tuple[float, float]]] = [[] for _ in range(num_devices)]
        self._calls_before: dict[Sent, int] = {}
        self._clocks = [[0] * num_devices for _ in range(num_devices)]
        self._clock_of: dict[tuple[Value, int], list[int]] = {}

    def call(self, wires: Wires, part: int, start: float, end: float) -> None:
        """Record the call of a program for a microbatch, and its transfers."""
        clock = self._advance(wires, part)
        self._spans[wires.device].append((start, end))
        for value, targets, _ in wires.sends:
            self._calls_before.update(((value, part, target), clock[target]) for target in targets)

    def _advance(self, wires: Wires, part: int) -> list[int]:
        """Lower bound on the calls of each device that have ended when a call of this program has ended."""
        clock = self._clocks[wires.device]
        for value in wires.arrives:
            made = self._clock_of.get((value, WHOLE if value.whole else part), clock)
            clock[:] = map(max, clock, made)
        clock[wires.device] += 1
        self._clock_of.update(((value, part), list(clock)) for value, _, _ in wires.sends)
        return clock

    def sent(self) -> list[Sent]:
        """All transfers of the calls so far."""
        return list(self._calls_before)

    def earliest(self, sent: Sent, start: float) -> float:
        """When the target may allocate a value whose transfer started at `start`.

        As durations of calls are estimates, the value may arrive earlier than simulated: at the earliest at the start
        of the call that the target runs then, and after the calls of the target that must end before.
        """
        spans, before = self._spans[sent[2]], self._calls_before[sent]
        if not spans:
            return start
        running = spans[max(bisect_left(spans, (start, 0.0)) - 1, 0)][0]
        could = spans[before - 1][1] if before else 0.0
        return min(start, max(running, could))
