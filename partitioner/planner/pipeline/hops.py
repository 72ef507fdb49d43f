"""What a microbatch takes over the boundaries between stages, each over the link between its two devices.

Boundary b is behind stage b. Arrays have an entry for each position among the items that it may be at, `(n + 1,)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Topology
from partitioner.planner.pipeline.op_places import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Hop:
    """Seconds of a microbatch over a boundary.

    Attributes:
        there: Of activations.
        back: Of gradients.
        busy_there: Of activations, without latency: while the next may not start.
        busy_back: Of gradients.
        busy: How long a channel carries all that uses it, if as much crosses at the other boundaries.
        goes_back: Whether gradients cross.
        call_seconds: Of a call, at the least.
        routes: There and back.
    """

    there: Floats
    back: Floats
    busy_there: Floats
    busy_back: Floats
    busy: Floats
    goes_back: NDArray[np.bool_]
    call_seconds: float
    routes: tuple[Route, Route]

    @cached_property
    def called(self) -> tuple[Floats, Floats]:
        """The same with the calls that the two are handed to."""
        return self.there + self.call_seconds, self.back + np.where(self.goes_back, self.call_seconds, 0.0)

    @cached_property
    def least(self) -> tuple[float, float, float]:
        """The least of `called`, there, back and both together, wherever the boundary is."""
        there, back = (seconds[1:-1] for seconds in self.called)
        return float(there.min()), float(back.min()), float((there + back).min())


def hops_between(
    devices: Sequence[int],
    topology: Topology,
    *,
    crossing: tuple[Floats, Floats],
    counted: tuple[Floats, Floats],
    call_seconds: float,
) -> list[Hop]:
    """The hops over the boundaries between the stages of these devices.

    Args:
        devices: Device of each stage.
        topology: Their links.
        crossing: Bytes of all activations, and of all gradients, that cross.
        counted: Those of them that take time.
        call_seconds: Of a call, at the least.
    """
    known: dict[tuple[Route, Route], Hop] = {}
    hops = []
    for routes in _routes(devices, topology):
        if routes not in known:
            busy = [some * route.seconds_of_a_byte for some, route in zip(counted, routes, strict=True)]
            there, back = (
                np.where(every > 0, route.latency_seconds + taken, 0.0)
                for every, route, taken in zip(crossing, routes, busy, strict=True)
            )
            known[routes] = Hop(
                there=there,
                back=back,
                busy_there=busy[0],
                busy_back=busy[1],
                busy=np.maximum(*(route.busy_seconds(*counted) for route in routes)),
                goes_back=crossing[1] > 0,
                call_seconds=call_seconds,
                routes=routes,
            )
        hops.append(known[routes])
    return hops


class Route(NamedTuple):
    """From a device to another: what a transfer takes that has it to itself, and what else its channels carry.

    Attributes:
        latency_seconds: Of its link.
        seconds_of_a_byte: Of the narrowest channel.
        channels: Of each, over how many boundaries activations go through it, and gradients, and seconds of a byte.
    """

    latency_seconds: float = 0.0
    seconds_of_a_byte: float = 0.0
    channels: frozenset[tuple[int, int, float]] = frozenset()

    def seconds(self, size_bytes: float) -> float:
        """Of a transfer."""
        return self.latency_seconds + size_bytes * self.seconds_of_a_byte

    def busy_seconds(self, there_bytes: Floats, back_bytes: Floats) -> Floats:
        """How long its busiest channel carries all that uses it, if as much crosses at the other boundaries."""
        busy = ((there * there_bytes + back * back_bytes) * of_byte for there, back, of_byte in self.channels)
        return np.maximum.reduce([np.zeros_like(there_bytes), *busy])


def _routes(devices: Sequence[int], topology: Topology) -> Iterator[tuple[Route, Route]]:
    """Over each boundary, there and back."""
    channels = [
        (topology.channels(one, other), topology.channels(other, one)) if one != other else ({}, {})
        for one, other in pairwise(devices)
    ]
    numbers = [Counter(name for of_boundary in channels for name in of_boundary[way]) for way in (0, 1)]
    for pair, ways in zip(pairwise(devices), channels, strict=True):
        there, back = (
            Route(
                latency_seconds=topology.link(*ends).latency_seconds,
                seconds_of_a_byte=1 / min(way.values()),
                channels=frozenset((numbers[0][name], numbers[1][name], 1 / width) for name, width in way.items()),
            )
            if way
            else Route()
            for way, ends in zip(ways, (pair, pair[::-1]), strict=True)
        )
        yield there, back


def seconds_before(hops: Sequence[Hop], stage: int) -> tuple[Floats | float, Floats | float]:
    """Seconds there and back over all boundaries before a stage, by where it starts; the others take their least."""
    if not stage:
        return 0.0, 0.0
    there, back = hops[stage - 1].called
    others = [hop.least for hop in hops[: stage - 1]]
    return there + sum(least[0] for least in others), back + sum(least[1] for least in others)


def seconds_behind(hops: Sequence[Hop], stage: int) -> Floats | float:
    """The same, there and back together, over all boundaries behind a stage, by where it ends."""
    if stage == len(hops):
        return 0.0
    there, back = hops[stage].called
    return there + back + sum(hop.least[2] for hop in hops[stage + 1 :])
