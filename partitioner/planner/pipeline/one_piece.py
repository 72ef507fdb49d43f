"""Lower bound on a step in one piece whose devices hold consecutive items: ops run as soon as they can.

A cut is no faster than the slowest of its parts by itself (`part_bounds.py`), nor than the chain through all of them
and what they then have left to do (`least_chain.py`). At first parts know few of their transfers; those of the cuts
that are refuted last learn of all of theirs, again and again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.chain_seconds import ChainSeconds
from partitioner.planner.pipeline.least_chain import LeastChain
from partitioner.planner.pipeline.part_bounds import seconds_of_all_parts, seconds_with_transfers
from partitioner.planner.pipeline.step_ops import Part, StepOps

# Visits of what an op waits for, some 4 microseconds each for up to 64 parts at a time, that raising bounds may take.
_MOST_VISITS, _PARTS_OF_VISIT = 60_000, 64
# Numbers of devices whose bounds are raised together: those with the least. More devices hardly ever have a lower one.
_MOST_RAISED = 3
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
        is_raised: Whether there is time to raise it by transfers.
    """
    count, num_devices = len(order), len(costed.topology.devices)
    alone = min(map(sum, set(costed.columns)), default=0.0)
    if num_devices == 1 or count < 2 or not alone:
        return OnePieceBound(seconds=alone)
    ops, numbers = StepOps.of(costed, coarsening, order), range(2, min(num_devices, count) + 1)
    chain = ChainSeconds(ops=ops, chain=Chain.of(ops))
    bounds = LeastChain(seconds=chain.of_all_parts(), least=seconds_of_all_parts(ops))
    known: set[Part] = set()
    visits_left = float(_MOST_VISITS)
    found = {number: bounds.bound(number, alone) for number in numbers}
    while True:
        seconds = min(alone, *(seconds for seconds, _ in found.values()))
        if seconds >= known_seconds:
            return OnePieceBound(seconds=seconds)
        raised = sorted((number for number, (_, ends) in found.items() if ends), key=found.__getitem__)[:_MOST_RAISED]
        new = sorted(_parts((found[number][1] or () for number in raised), count) - known)
        visits_left -= ops.num_waits * max(1.0, len(new) / _PARTS_OF_VISIT)
        is_last = not is_raised or not new or visits_left < 0 or seconds >= alone
        if is_last:
            least = [np.where(may, bounds.least, np.inf) for may in may_hold] or [bounds.least]
            possible = [LeastChain(seconds=bounds.seconds, least=table) for table in least]
            cuts = (one.bound(number, _MOST_TIMES_ALONE * alone, seconds)[1] for number in numbers for one in possible)
            closest = dict.fromkeys(_assignment(ends, order) for ends in cuts if ends)
            return OnePieceBound(seconds=seconds, closest=tuple(closest))
        waits, (starts, ends) = ops.waits(new), zip(*new, strict=True)
        chain.raised(bounds.seconds, new, waits)
        bounds.least[starts, ends] = np.maximum(bounds.least[starts, ends], seconds_with_transfers(ops, new, waits))
        known.update(new)
        found |= {number: bounds.bound(number, alone, found[number][0]) for number in raised}


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
