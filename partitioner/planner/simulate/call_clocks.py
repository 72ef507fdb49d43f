"""From when on a device may take memory for what it receives: as soon as the sender could have sent it."""

from __future__ import annotations

from bisect import bisect_left

from partitioner.planner.simulate.dataflow import Dataflow, Value, Wires

WHOLE = -1
"""Stands for the number of a microbatch where a value or a call belongs to the whole step."""
Sent = tuple[Value, int, int]
"""What is sent: a value, the microbatch or `WHOLE`, and the device that it goes to."""


class CallClocks:
    """Which calls must have ended when others have: a clock of each device that counts the calls of every device."""

    def __init__(self, wiring: Dataflow) -> None:
        num_devices = len(wiring.costs.costed.topology.devices)
        # Calls of each device, as start and end; and for what was sent, how many on its target must end before.
        self._spans: list[list[tuple[float, float]]] = [[] for _ in range(num_devices)]
        self._calls_before: dict[Sent, int] = {}
        self._clocks = [[0] * num_devices for _ in range(num_devices)]
        self._clock_of: dict[tuple[Value, int], list[int]] = {}

    def call(self, wires: Wires, part: int, start: float, end: float) -> None:
        """A program was called for a microbatch, and sends what it made."""
        clock = self._advance(wires, part)
        self._spans[wires.device].append((start, end))
        for value, targets, _ in wires.sends:
            self._calls_before.update(((value, part, target), clock[target]) for target in targets)

    def _advance(self, wires: Wires, part: int) -> list[int]:
        """How many calls of each device have ended, at the least, when a call of this program has."""
        clock = self._clocks[wires.device]
        for value in wires.arrives:
            made = self._clock_of.get((value, WHOLE if value.whole else part), clock)
            clock[:] = map(max, clock, made)
        clock[wires.device] += 1
        self._clock_of.update(((value, part), list(clock)) for value, _, _ in wires.sends)
        return clock

    def sent(self) -> list[Sent]:
        """What calls sent."""
        return list(self._calls_before)

    def earliest(self, sent: Sent, start: float) -> float:
        """When the target may take memory for what began to arrive at `start`.

        That is from the call on before it comes, if it could come that early: how long calls take is not foreseen so
        well that it will not.
        """
        spans, before = self._spans[sent[2]], self._calls_before[sent]
        if not spans:
            return start
        running = spans[max(bisect_left(spans, (start, 0.0)) - 1, 0)][0]
        could = spans[before - 1][1] if before else 0.0
        return min(start, max(running, could))
