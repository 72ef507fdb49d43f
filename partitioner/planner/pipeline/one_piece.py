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

from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.chain_seconds import ChainSeconds
from partitioner.planner.pipeline.least_chain import LeastChain
from partitioner.planner.pipeline.part_bounds import seconds_of_all_parts, seconds_with_transfers
from partitioner.planner.pipeline.step_ops import Part, StepOps

# Visits of what an op waits for, some 4 microseconds each for up to 64 parts at a time, that raising bounds may take.
_MOST_VISITS, _PARTS_OF_VISIT = 100_000, 64
# Cuts whose parts are raised together with those one item aside: those with the least bounds.
_MOST_WIDENED = 7


@dataclass(frozen=True, kw_only=True)
class OnePieceBound:
    """The bound, and the cuts that it refutes last.

    Attributes:
        seconds: No cut is faster.
        closest: For each number of devices from two on, the device of each item in the cut with the least bound,
            without transfers and with them. Where gradients of weights wait for those of inputs, a chain of layers
            reaches it.
    """

    seconds: float
    closest: tuple[Assignment, ...] = ()


def one_piece_bound(
    costed: CostedGraph,
    coarsening: Coarsening,
    order: tuple[int, ...],
    *,
    known_seconds: float = math.inf,
    is_raised: bool = True,
) -> OnePieceBound:
    """The bound over all cuts of the items, in this order, into at most as many parts as there are devices.

    Every op takes what it takes on its fastest device, and every transfer what it takes over the fastest link.

    Args:
        costed: The step.
        coarsening: The items.
        order: Their order.
        known_seconds: A step. Once the bound is no less, it is not raised, and there are no cuts.
        is_raised: Whether there is time to raise it by transfers.
    """
    count, num_devices = len(order), len(costed.topology.devices)
    alone = min(map(sum, zip(*costed.seconds, strict=True)), default=0.0)
    if num_devices == 1 or count < 2:
        return OnePieceBound(seconds=alone)
    ops, numbers = StepOps.of(costed, coarsening, order), range(2, min(num_devices, count) + 1)
    chain = ChainSeconds(ops=ops, chain=Chain.of(ops))
    bounds = LeastChain(seconds=chain.of_all_parts(), least=seconds_of_all_parts(ops))
    known: set[Part] = set()
    closest: dict[Assignment, None] = {}
    visits_left = float(_MOST_VISITS)
    found: list[tuple[float, list[int] | None]] = [(0.0, None) for _ in numbers]
    while True:
        found = [bounds.bound(number, alone, least) for number, (least, _) in zip(numbers, found, strict=True)]
        cuts = [(seconds, ends) for seconds, ends in found if ends is not None]
        seconds = min(alone, *(seconds for seconds, _ in found))
        if seconds >= known_seconds:
            return OnePieceBound(seconds=seconds)
        widened = sorted(cuts)[:_MOST_WIDENED]
        parts = sorted((_parts(cuts, count) | _parts(widened, count, aside=(-1, 0, 1))) - known)
        visits_left -= ops.num_waits * max(1.0, len(parts) / _PARTS_OF_VISIT)
        is_last = not is_raised or not parts or visits_left < 0 or seconds >= alone
        if is_last or not known:
            closest |= dict.fromkeys(_assignment(ends, order) for _, ends in cuts)
        if is_last:
            return OnePieceBound(seconds=seconds, closest=tuple(closest))
        waits, (starts, ends) = ops.waits(parts), zip(*parts, strict=True)
        chain.raised(bounds.seconds, parts, waits)
        bounds.least[starts, ends] = np.maximum(bounds.least[starts, ends], seconds_with_transfers(ops, parts, waits))
        known.update(parts)


def _parts(cuts: Iterable[tuple[float, Sequence[int]]], count: int, aside: Sequence[int] = (0,)) -> set[Part]:
    """The parts of cuts, given by their seconds and the ends of their parts, with boundaries so many items aside."""
    return {
        (start + before, end + behind)
        for _, ends in cuts
        for start, end in pairwise([0, *ends])
        for before, behind in product(aside, repeat=2)
        if 0 <= start + before < end + behind <= count
    }


def _assignment(ends: Sequence[int], order: Sequence[int]) -> Assignment:
    device = {item: part for part, (start, end) in enumerate(pairwise([0, *ends])) for item in order[start:end]}
    return tuple(device[item] for item in range(len(order)))
