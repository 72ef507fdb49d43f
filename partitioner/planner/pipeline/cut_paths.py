"""What the longest paths through the calls of stages take, however a sequence of items is cut into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.topology import Topology
from partitioner.planner.pipeline.item_order import Floats, OrderedItems
from partitioner.planner.pipeline.longest_paths import CutItems, LeastStep, least_step, longest_path_seconds
from partitioner.planner.simulate.program_costs import CALL_SECONDS
from partitioner.stages.actions import Action

# Which of the first and of the last stages have no backward is told apart where few items need no gradient.
_MOST_WITHOUT_BACKWARD = 3


@dataclass(frozen=True, kw_only=True)
class Hops:
    """Seconds of a microbatch over each boundary, if stages are cut there: of activations, and of gradients."""

    there: Floats
    back: Floats


def least_hops(items: OrderedItems, topology: Topology, devices: Sequence[int]) -> Hops:
    """What a microbatch takes over each boundary at the least: its smallest tensor on the best link of the devices."""
    links = [topology.link(a, b) for a in devices for b in devices if a != b]
    latency = min((link.latency_seconds for link in links), default=0.0)
    bandwidth = max((link.bandwidth_bytes_per_second for link in links), default=np.inf)
    return Hops(
        there=np.where(items.forward_bytes > 0, latency + items.least_forward_bytes / bandwidth, 0.0),
        back=np.where(items.backward_bytes > 0, latency + items.least_backward_bytes / bandwidth, 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class CutPaths:
    """The cuts of items into stages, each of which waits for the one before it, as paths through their calls.

    Attributes:
        items: The items in order.
        topology: Has the devices and their links.
        devices: Device of each stage, by index.
        orders: The actions of each device, in order.
        trains: Whether there are backwards.
        recompute_all: Whether every stage runs its forward again.
        last_sums: Seconds of the sums of the first stage, by its end.
    """

    items: OrderedItems
    topology: Topology
    devices: Sequence[int]
    orders: Mapping[str, Sequence[Action]]
    trains: bool
    recompute_all: bool
    last_sums: Floats

    @cached_property
    def least_steps(self) -> tuple[LeastStep, ...]:
        """By which stages have a backward, the least step; none where stages may not wait for others."""
        return tuple(self._bounded(np.inf, 0))

    def bound_seconds(self, enough: float, most_branches: int) -> float:
        """Lower bound on the step of all cuts, without updates; 0 where stages may not wait for others.

        Args:
            enough: A bound so large needs not be larger.
            most_branches: How often cuts may be told apart by where a stage ends.
        """
        found = self._bounded(enough, most_branches) if most_branches else self.least_steps
        return min((least.seconds for least in found), default=0.0)

    def step_seconds(self, ends: Sequence[int], forward: Sequence[float], backward: Sequence[float]) -> float:
        """The step of a cut whose stages but the last end there, and take so long for a microbatch."""
        crossed = self._crossed
        if crossed is None:
            return 0.0
        start, stop = (sum(end < limit for end in ends) for limit in (crossed.start, crossed.stop))
        going_back = range(start, stop + 1) if self.trains else range(0)
        return longest_path_seconds(self._cut_items, self.orders, np.array(forward), np.array(backward), going_back)

    def _bounded(self, enough: float, most_branches: int) -> Iterator[LeastStep]:
        count, most = len(self.devices), len(self.items.order)
        crossed = self._crossed
        if count < 2 or crossed is None:
            return
        first, last = crossed.start, crossed.stop - 1
        for ahead in range(first):
            for behind in range(min(most - 1 - last, count - 1 - ahead) + 1):
                # Boundaries that no gradient crosses, those that one crosses, and again such that none does.
                places = [(1, first - 1)] * ahead + [(first, last)] * (count - 1 - ahead - behind)
                places += [(last + 1, most - 1)] * behind
                going_back = range(ahead, count - behind) if self.trains else range(0)
                yield least_step(
                    self._cut_items, self.orders, places, going_back, enough=enough, most_branches=most_branches
                )

    @cached_property
    def _crossed(self) -> range | None:
        """The boundaries that gradients cross, in inference all; None where stages may not wait for neighbours."""
        items, most = self.items, len(self.items.order)
        crossed = 1 + np.flatnonzero(items.backward_bytes[1:-1])
        if not (items.forward_bytes[1:-1] > 0).all() or bool(len(crossed)) != self.trains:
            return None
        if not self.trains:
            return range(1, most)
        first, last = int(crossed[0]), int(crossed[-1])
        is_whole = len(crossed) == last + 1 - first
        without = max(first - 1, most - 1 - last)
        return range(first, last + 1) if is_whole and without <= _MOST_WITHOUT_BACKWARD else None

    @cached_property
    def _cut_items(self) -> CutItems:
        items, crossed = self.items, self._crossed or range(1)
        hops = least_hops(items, self.topology, self.devices)
        return CutItems(
            forward=_least(items.forward_seconds),
            backward=_least(items.backward_seconds + (items.again_seconds if self.recompute_all else 0.0)),
            summing=self.last_sums,
            call=CALL_SECONDS,
            there=float(hops.there[1:-1].min()),
            back=float(hops.back[crossed.start : crossed.stop].min()),
        )


def _least(seconds: Floats) -> Floats:
    """Running sums `(n + 1,)` of items that are each on their fastest device, of those of every device."""
    return np.concatenate([[0.0], np.cumsum(np.diff(seconds).min(axis=0))])
