"""Simulate transfers that share links over time.

Bandwidth is shared max-min fair (Bertsekas and Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2): all
transfers get equal rates of a channel, and the rest that a transfer cannot use, because of another channel, goes to the
others. Rates are computed anew whenever a transfer starts or ends. Latency is added after the last byte.

A route over several links in series has a single rate, as if each link stored all bytes before the next sent them. It
uses this rate on each shared link, evenly over its whole time: many such transfers take as long as with the links in
series, but of two transfers the second may arrive a little early.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from cost_models.communication import transfer_seconds
from cost_models.topology import Channel, Topology

Key = TypeVar("Key", bound=Hashable)
Pair = tuple[int, int]


def concurrent_seconds(topology: Topology, transfers: Sequence[tuple[int, int, float]]) -> tuple[float, ...]:
    """Seconds until each of several transfers, which start at the same time, has arrived.

    A transfer shares the link from its source to its target with others of the same pair and direction, and the uplinks
    on its route with all transfers that cross them.

    Args:
        topology: The topology of the transfers.
        transfers: Source, target and bytes of each.

    Returns:
        Seconds of each transfer, in the order given; 0 where source and target are the same.

    Raises:
        ValueError: A size is negative.
    """
    negative = [size for _, _, size in transfers if size < 0]
    if negative:
        raise ValueError(f"cannot send {negative[0]} bytes")
    flows, seconds = _Flows[int](), [0.0] * len(transfers)
    for index, (source, target, size) in enumerate(transfers):
        if source != target:
            flows.start(index, size, topology.channels(source, target), 0.0)
    while flows.next_end < math.inf:
        now, ended = flows.finish()
        for index in ended:
            source, target, _ = transfers[index]
            seconds[index] = now + topology.link(source, target).latency_seconds
    return tuple(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival(Generic[Key]):
    """A transfer with its start and end."""

    key: Key
    source: int
    target: int
    size_bytes: float
    start_seconds: float
    end_seconds: float


class Network(Generic[Key]):
    """The links of a topology; each carries one transfer at a time in each direction, first come first served.

    Transfers must be sent in the order of time, and not before the arrivals that `arrivals` has returned, unless
    nothing is shared.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._flows = _Flows[Pair]()
        self._routes: dict[Pair, Mapping[Channel, float]] = {}
        self._free: dict[Pair, float] = {}
        self._waiting: dict[Pair, deque[tuple[Key, float]]] = {}
        self._started: dict[Pair, float] = {}
        self._sent: list[tuple[float, int, Pair]] = []
        self._count = 0

    def send(self, key: Key, source: int, target: int, size_bytes: float, now: float) -> Arrival[Key] | None:
        """Send bytes as soon as the link from `source` to `target` is free.

        Returns:
            Its arrival where nothing is shared on its route; None where `arrivals` will return it.
        """
        pair = source, target
        if pair not in self._routes:
            self._routes[pair] = self._topology.channels(source, target)
        if len(self._routes[pair]) > 1:
            queue = self._waiting.setdefault(pair, deque())
            queue.append((key, size_bytes))
            if len(queue) == 1:
                self._start(pair, now)
            return None
        start = max(now, self._free.get(pair, 0.0))
        end = start + transfer_seconds(size_bytes, self._topology.link(source, target))
        self._free[pair] = end
        return Arrival(
            key=key, source=source, target=target, size_bytes=size_bytes, start_seconds=start, end_seconds=end
        )

    @property
    def shares(self) -> bool:
        """Whether transfers between different pairs of devices share channels."""
        return self._topology.shares

    @property
    def next_seconds(self) -> float:
        """Time of the next call of `arrivals`; infinity without transfers on shared channels."""
        if not self._waiting:
            return math.inf
        return min(self._flows.next_end, self._sent[0][0] if self._sent else math.inf)

    def arrivals(self) -> list[Arrival[Key]]:
        """Advance to `next_seconds`; returns the transfers that arrive then, in the order of sending, possibly none."""
        now = self.next_seconds
        if self._flows.next_end <= now:
            for pair in self._flows.finish()[1]:
                self._count += 1
                heapq.heappush(self._sent, (now + self._topology.link(*pair).latency_seconds, self._count, pair))
        arrivals = []
        while self._sent and self._sent[0][0] <= now:
            _, _, pair = heapq.heappop(self._sent)
            key, size = self._waiting[pair].popleft()
            arrivals.append(
                Arrival(
                    key=key,
                    source=pair[0],
                    target=pair[1],
                    size_bytes=size,
                    start_seconds=self._started[pair],
                    end_seconds=now,
                )
            )
            if self._waiting[pair]:
                self._start(pair, now)
        return arrivals

    def _start(self, pair: Pair, now: float) -> None:
        self._started[pair] = now
        self._flows.start(pair, self._waiting[pair][0][1], self._routes[pair], now)


class _Flows(Generic[Key]):
    """Running transfers, each at its fair share of every channel on its route."""

    def __init__(self) -> None:
        self._left: dict[Key, float] = {}
        self._routes: dict[Key, Mapping[Channel, float]] = {}
        self._rates: dict[Key, float] | None = {}
        self._now = 0.0

    def start(self, key: Key, size_bytes: float, route: Mapping[Channel, float], now: float) -> None:
        """Start a transfer on a route: the channels that it occupies, each with its bytes per second."""
        self._go_on_to(now)
        self._left[key], self._routes[key] = size_bytes, route
        self._rates = None

    @property
    def next_end(self) -> float:
        """Time when the next transfer ends, if none starts before; infinity without transfers."""
        return self._now + min(self._left_seconds().values(), default=math.inf)

    def finish(self) -> tuple[float, list[Key]]:
        """Advance to `next_end`; returns this time, and the transfers that end then."""
        left = self._left_seconds()
        first = min(left.values())
        # Transfers that end together must all end, whatever rounding leaves.
        ended = [key for key, seconds in left.items() if seconds <= first * (1 + 1e-9)]
        self._go_on_to(self._now + first)
        for key in ended:
            del self._left[key], self._routes[key]
        self._rates = None
        return self._now, ended

    def _go_on_to(self, now: float) -> None:
        seconds = now - self._now
        if seconds > 0:
            rates = self._shares()
            self._left = {key: max(0.0, left - rates[key] * seconds) for key, left in self._left.items()}
        self._now = max(self._now, now)

    def _left_seconds(self) -> dict[Key, float]:
        rates = self._shares()
        return {key: left / rates[key] for key, left in self._left.items()}

    def _shares(self) -> dict[Key, float]:
        if self._rates is None:
            self._rates = _fair_rates(self._routes)
        return self._rates


def _fair_rates(routes: Mapping[Key, Mapping[Channel, float]]) -> dict[Key, float]:
    """Bytes per second of each transfer: the scarcest channel is divided first, then the next."""
    free = {channel: bandwidth for route in routes.values() for channel, bandwidth in route.items()}
    waiting, rates = dict(routes), dict[Key, float]()
    while waiting:
        users = Counter(channel for route in waiting.values() for channel in route)
        rate = min(free[channel] / count for channel, count in users.items())
        scarce = {channel for channel, count in users.items() if free[channel] / count <= rate * (1 + 1e-12)}
        for key in [key for key, route in waiting.items() if not scarce.isdisjoint(route)]:
            rates[key] = rate
            for channel in waiting.pop(key):
                free[channel] = max(free[channel] - rate, 0.0)
    return rates
