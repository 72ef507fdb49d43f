"""What a microbatch takes over the boundaries between stages, each over the link between its two devices.

Boundary b is behind stage b. Arrays have an entry for each position among the items that it may be at, `(n + 1,)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

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
        goes_back: Whether gradients cross.
        call_seconds: Of a call, at the least.
    """

    there: Floats
    back: Floats
    busy_there: Floats
    busy_back: Floats
    goes_back: NDArray[np.bool_]
    call_seconds: float

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
    known: dict[tuple[tuple[float, float], ...], Hop] = {}
    hops = []
    for one, other in pairwise(devices):
        routes = tuple(_least_latency_and_seconds_of_a_byte(topology, *pair) for pair in ((one, other), (other, one)))
        if routes not in known:
            busy = [some * of_byte for some, (_, of_byte) in zip(counted, routes, strict=True)]
            there, back = (
                np.where(every > 0, latency + taken, 0.0)
                for every, (latency, _), taken in zip(crossing, routes, busy, strict=True)
            )
            known[routes] = Hop(
                there=there,
                back=back,
                busy_there=busy[0],
                busy_back=busy[1],
                goes_back=crossing[1] > 0,
                call_seconds=call_seconds,
            )
        hops.append(known[routes])
    return hops


def _least_latency_and_seconds_of_a_byte(topology: Topology, source: int, target: int) -> tuple[float, float]:
    """Of a transfer that has the link and the uplinks on its route to itself; 0 where it stays on a device."""
    if source == target:
        return 0.0, 0.0
    narrowest = min(topology.channels(source, target).values())
    return topology.link(source, target).latency_seconds, 1 / narrowest


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
