"""Lower bound on a step in one piece whose devices hold consecutive items: ops run as soon as they can.

A cut is no faster than the slowest of its parts by itself (`part_bounds.py`), nor than the chain through all of them
and what they then have left to do (`least_chain.py`); parts that certainly do not fit are in none (`least_held.py`).
Passes raise the bound by what is known of the cuts that are refuted last: all transfers of their parts, which parts may
come before others, and of two devices what the cuts take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.tolerances import AS_FAST, SLIGHTLY
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.chain_seconds import ChainSeconds
from partitioner.planner.pipeline.chain_stretches import Stretches
from partitioner.planner.pipeline.least_chain import LeastChain
from partitioner.planner.pipeline.least_held import least_held_bytes
from partitioner.planner.pipeline.part_bounds import seconds_of_all_parts, seconds_with_transfers
from partitioner.planner.pipeline.step_ops import Part, StepOps

# Visits of what an op waits for, some 4 microseconds each for up to 64 parts at a time, that raising bounds may take.
_MOST_VISITS, _PARTS_OF_VISIT = 60_000, 64
# Numbers of devices whose bounds are raised together: those with the least. More devices hardly ever have a lower one.
_MOST_RAISED = 3
# How often bounds look again at what comes before parts.
_ROUNDS = 2
# So many cuts in two are simulated at the most.
_MOST_STEPS = 32
# Cuts that take longer than so many times one device, which may not have room, are not looked for.
_MOST_TIMES_ALONE = 4


@dataclass(frozen=True, kw_only=True)
class OnePieceBound:
    """The bound, and the cuts that it refutes last.

    Attributes:
        seconds: No cut is faster.
        closest: For each number of devices from two on, the device of each item in the cuts with the least bound whose
            parts may be held. Where gradients of weights wait for those of inputs, a chain of layers reaches it.
    """

    seconds: float
    closest: tuple[Assignment, ...] = ()


def one_piece_bound(
    costed: CostedGraph,
    coarsening: Coarsening,
    order: tuple[int, ...],
    *,
    may_hold: Sequence[NDArray[np.bool_]] = (),
    known_seconds: float = math.inf,
    is_raised: bool = True,
    step_of: Callable[[Assignment], float | None] | None = None,
) -> OnePieceBound:
    """The bound over all cuts of the items, in this order, into at most as many parts as there are devices.

    Every op takes what it takes on its fastest device, and every transfer what it takes over the fastest link.

    Args:
        costed: The step.
        coarsening: The items.
        order: Their order.
        may_hold: `(n + 1, n + 1)` each: whether a device may have room for items i to j. Only cuts heed it, one for
            each of these tables.
        known_seconds: A step. Once the bound is no less, it is not raised, and there are no cuts.
        is_raised: Whether there is time to raise it.
        step_of: What a cut in two takes, in seconds; infinite where it does not fit, None where there is no time to
            find out. Of two devices that are alike, cuts are simulated until none is left that may be much faster than
            the best.
    """
    alone = min(map(sum, set(costed.columns)), default=0.0)
    if len(costed.topology.devices) == 1 or len(order) < 2 or not alone:
        return OnePieceBound(seconds=alone)
    bounds = _Bounds(costed, coarsening, order, alone)
    if is_raised:
        bounds.raise_by_transfers(known_seconds)
        bounds.raise_by_parts_before(known_seconds)
        if step_of is not None:
            bounds.raise_by_steps(known_seconds, step_of)
    if (seconds := bounds.seconds) >= known_seconds:
        return OnePieceBound(seconds=seconds)
    return OnePieceBound(seconds=seconds, closest=tuple(bounds.closest(may_hold)))


class _Bounds:
    """The bounds of all numbers of parts, each with the ends of the parts of a cut that it hardly refutes."""

    def __init__(self, costed: CostedGraph, coarsening: Coarsening, order: tuple[int, ...], alone: float) -> None:
        topology = costed.topology
        self._order, self._most_on_host = order, max(Counter(map(topology.host, range(len(topology.devices)))).values())
        self._ops = StepOps.of(costed, coarsening, order)
        self._chain = ChainSeconds(stretches=Stretches(ops=self._ops, chain=Chain.of(self._ops)))
        self._tables = LeastChain(
            seconds=self._chain.of_all_parts(),
            beside=self._chain.of_boundaries(),
            least=np.where(self._may_be_held(costed, coarsening), seconds_of_all_parts(self._ops), np.inf),
        )
        self._most = alone if np.isfinite(self._tables.least[0, -1]) else _MOST_TIMES_ALONE * alone
        self._most_of_cuts = _MOST_TIMES_ALONE * alone
        self._numbers = range(2, min(len(costed.topology.devices), len(order)) + 1)
        self._found = {number: self._tables.bound(number, self._most) for number in self._numbers}

    def _may_be_held(self, costed: CostedGraph, coarsening: Coarsening) -> NDArray[np.bool_]:
        chain, most_bytes = self._chain.chain, max(placed.memory_bytes for placed in costed.topology.devices)
        awaited = self._ops.names[int(chain.milestones[chain.turn])]
        return least_held_bytes(costed, coarsening, self._order, awaited) <= most_bytes

    @property
    def seconds(self) -> float:
        """The least of all: one device holds all items, if there is room, or each of some numbers a part."""
        return min(self._most, *(seconds for seconds, _ in self._found.values()))

    def raise_by_transfers(self, known_seconds: float) -> None:
        """Let the parts of the cuts that are refuted last know of all their transfers, until no cut has others."""
        known: set[Part] = set()
        visits_left = float(_MOST_VISITS)
        while self.seconds < min(known_seconds, self._most):
            raised = sorted((number for number, (_, ends) in self._found.items() if ends), key=self._found.__getitem__)
            raised = raised[:_MOST_RAISED]
            new = sorted(_parts((self._found[number][1] or () for number in raised), len(self._order)) - known)
            visits_left -= self._ops.num_waits * max(1.0, len(new) / _PARTS_OF_VISIT)
            if not new or visits_left < 0:
                return
            waits, (starts, ends) = self._ops.waits(new), zip(*new, strict=True)
            self._chain.raised(self._tables.seconds, new, waits)
            with_transfers = seconds_with_transfers(self._ops, new, waits)
            self._tables.least[starts, ends] = np.maximum(self._tables.least[starts, ends], with_transfers)
            known.update(new)
            for number in raised:
                self._raise(number)

    def raise_by_parts_before(self, known_seconds: float) -> None:
        """Let the least bounds know which parts may come before others."""
        raised: set[int] = set()
        while (seconds := self.seconds) < min(known_seconds, self._most):
            least = next(number for number, (bound, _) in self._found.items() if bound == seconds)
            if least in raised:
                return
            self._raise(least, rounds=_ROUNDS)
            raised.add(least)

    def raise_by_steps(self, known_seconds: float, step_of: Callable[[Assignment], float | None]) -> None:
        """Let parts of two devices know what the cuts take that begin with them, of those that are refuted last."""
        best = known_seconds
        for _ in range(_MOST_STEPS):
            seconds, ends = self._found[2]
            if ends is None or seconds * SLIGHTLY >= min(best, self._most):
                return
            if (step := step_of(_assignment(ends, self._order))) is None:
                return
            best = min(best, step)
            self._tables.least[0, ends[0]] = max(self._tables.least[0, ends[0]], step)
            self._raise(2)

    def closest(self, may_hold: Sequence[NDArray[np.bool_]]) -> Iterable[Assignment]:
        """For each number of parts, the cuts with the least bound whose parts may be held.

        First those whose bounds are close to the least of all, the fewest parts first, then the others by their bounds;
        at last those of more parts than a host has devices.
        """
        least = [np.where(may, self._tables.least, np.inf) for may in may_hold] or [self._tables.least]
        possible, seconds = [replace(self._tables, least=table) for table in least], self.seconds
        bounds = (one.bound(number, self._most_of_cuts, seconds) for number in self._numbers for one in possible)
        cuts = sorted(
            (len(ends) > self._most_on_host, max(bound, AS_FAST * seconds), len(ends), ends)
            for bound, ends in bounds
            if ends
        )
        return dict.fromkeys(_assignment(ends, self._order) for *_, ends in cuts)

    def _raise(self, number: int, *, rounds: int = 0) -> None:
        bound, _ = self._found[number]
        self._found[number] = self._tables.bound(number, self._most, bound, rounds=rounds)


def _parts(cuts: Iterable[Sequence[int]], count: int) -> set[Part]:
    """The parts of cuts, given by the ends of their parts, and those with boundaries one item aside."""
    return {
        (start + before, end + behind)
        for ends in cuts
        for start, end in pairwise([0, *ends])
        for before, behind in product((-1, 0, 1), repeat=2)
        if 0 <= start + before < end + behind <= count
    }


def _assignment(ends: Sequence[int], order: Sequence[int]) -> Assignment:
    device = {item: part for part, (start, end) in enumerate(pairwise([0, *ends])) for item in order[start:end]}
    return tuple(device[item] for item in range(len(order)))
