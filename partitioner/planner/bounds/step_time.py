"""Lower bounds on a step of the op graph as traced: no placement of any kind can be simulated faster."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase


def lower_bound_seconds(costed: CostedGraph) -> float:
    """The larger of two relaxations (Graham, "Bounds on multiprocessing timing anomalies", 1969).

    Critical path: every op on its fastest device, transfers free, devices unlimited. Work: all ops spread over all
    devices, and those before the updates alone, which replicas that share a device slow down.
    """
    graph = costed.graph
    fastest = [min(seconds) for seconds in costed.seconds]
    end: dict[str, float] = {}
    for op, seconds in zip(graph.ops, fastest, strict=True):
        end[op.name] = seconds + max((end[source] for source in graph.sources[op.name]), default=0.0)
    before = [row for op, row in zip(graph.ops, costed.seconds, strict=True) if op.phase is not Phase.UPDATE]
    return max(max(end.values(), default=0.0), least_load_seconds(costed.seconds), least_load_seconds(before))


def least_load_seconds(rows: Sequence[Sequence[float]]) -> float:
    """Lower bound on the work of the fullest device, over all placements; `rows` are the seconds of each op by device.

    A device that takes at least r times as long as the fastest for every op does in a time T what takes the fastest
    T / r at the most, so all together do in T what takes it the sum of these.
    """
    if not rows:
        return 0.0
    least = [float("inf")] * len(rows[0])
    for row in set(map(tuple, rows)):  # of thousands of ops, few are different
        fastest = min(row)
        if fastest > 0:
            least = [min(ratio, seconds / fastest) for ratio, seconds in zip(least, row, strict=True)]
    speed = sum(1 / ratio if ratio < float("inf") else 1.0 for ratio in least)
    return sum(map(min, rows)) / speed
