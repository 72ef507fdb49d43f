"""Lower bounds on a step of the op graph as traced: no placement of any kind can be simulated faster."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase


def lower_bound_seconds(costed: CostedGraph) -> float:
    """The larger of two relaxations (Graham, "Bounds on multiprocessing timing anomalies", 1969).

    Critical path: every op on its fastest device, transfers free, devices unlimited. Work: `work_bound_seconds`.
    """
    return max(path_seconds(costed), work_bound_seconds(costed))


def path_seconds(costed: CostedGraph) -> float:
    """Lower bound of the step as one graph: its critical path."""
    return longest_path_seconds(costed.graph.source_indices, costed.fastest_seconds)


def work_bound_seconds(costed: CostedGraph) -> float:
    """Lower bound in any number of microbatches, which shorten the critical path, but not the work.

    All ops are spread over all devices, and those before the updates alone, which replicas that share a device slow
    down.
    """
    seconds = costed.seconds_array
    before = seconds[[op.phase is not Phase.UPDATE for op in costed.graph.ops]]
    return max(least_load_seconds(seconds), least_load_seconds(before))


def longest_path_seconds(sources: Sequence[Sequence[int]], seconds: Sequence[float]) -> float:
    """The longest path through ops that take some seconds, each after its sources, which come before it."""
    ends: list[float] = []
    for waits, own in zip(sources, seconds, strict=True):
        ends.append(own + max([ends[source] for source in waits], default=0.0))
    return max(ends, default=0.0)


def least_load_seconds(seconds: NDArray[np.float64]) -> float:
    """Lower bound on the work of the fullest device, over all placements, from seconds of shape `(ops, devices)`.

    A device that takes at least r times as long as the fastest for every op does in a time T what takes the fastest
    T / r at the most, so all together do in T what takes it the sum of these.
    """
    seconds = seconds[(seconds > 0).all(axis=1)]
    if not len(seconds):
        return 0.0
    fastest = seconds.min(axis=1)
    ratios = (seconds / fastest[:, None]).min(axis=0)
    # Exactly rounded, so that plans are the same on every processor.
    return math.fsum(fastest) / math.fsum(1 / ratios)
