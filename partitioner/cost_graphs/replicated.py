"""Chains of stages, some of them on several devices: the best chain, by a DP over all downsets of the graph.

A downset is a set of nodes with all that precedes them. A stage on r devices has a copy on each; the copies take turns
with the batches and sum their gradients. As in D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for
DNN Training", SOSP 2019, and in the optimizer published with it (github.com/msr-fiddle/pipedream), the load of each
device per batch is an r-th of the load on a single device, plus an r-th of the time for the 4 (r - 1) / r times the
bytes of the stage's parameters that it sends and receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.cost_graphs.graph import CostGraph
from partitioner.errors import UsageError
from partitioner.spelling import argument

_MOST_DOWNSETS = 4000
_MS_PER_BYTE = 1e-6  # 1 GB/s, as values of profiles are costed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedStage:
    """Nodes on `num_devices` devices; `load` is the load of each per batch, in the graph's unit."""

    nodes: tuple[str, ...]
    num_devices: int
    load: float


def best_replicated_chain(
    graph: CostGraph, num_devices: int, *, moves_values: bool = True
) -> tuple[ReplicatedStage, ...]:
    """The chain of stages with the smallest largest load of all chains on these devices.

    Args:
        graph: A profile: `memory_bytes` are the parameters of a node, in bytes, and costs are milliseconds.
        num_devices: Accelerators, all alike; some may stay idle.
        moves_values: Whether moving values counts as load; PipeDream's optimizer leaves it out.

    Raises:
        UsageError: The graph has too many downsets to try all.
    """
    inside = _downsets(graph)
    load = _loads(graph, inside, moves_values=moves_values)
    parameters = inside @ np.array([node.memory_bytes for node in graph.nodes])
    sync = _MS_PER_BYTE * np.maximum(parameters[None, :] - parameters[:, None], 0)
    best = [np.full(len(inside), np.inf) for _ in range(num_devices + 1)]
    best[0][0] = 0.0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    shared = {count: (load + 4 * (count - 1) / count * sync) / count for count in range(1, num_devices + 1)}
    for used in range(1, num_devices + 1):
        best[used] = best[used - 1].copy()
        choice.update({(used, end): choice[used - 1, end] for end in range(len(inside)) if (used - 1, end) in choice})
        for count in range(1, used + 1):
            largest = np.maximum(best[used - count][:, None], shared[count])
            begin = largest.argmin(axis=0)
            for end in np.flatnonzero(largest.min(axis=0) < best[used]):
                best[used][end] = largest[begin[end], end]
                choice[used, int(end)] = int(begin[end]), count
    return tuple(_stages(graph, inside, shared, best, choice))


def _downsets(graph: CostGraph) -> NDArray[np.bool_]:
    """A row for each downset, by size: the empty set first, all nodes last."""
    number = {node.id: index for index, node in enumerate(graph.nodes)}
    needs = [0] * len(graph.nodes)
    for value in graph.values:
        for target in value.targets:
            needs[number[target]] |= 1 << number[value.source]
    downsets, queue = {0}, [0]
    for done in queue:  # grows during the loop
        for index, need in enumerate(needs):
            more = done | 1 << index
            if more not in downsets and need & done == need:
                downsets.add(more)
                queue.append(more)
        if len(queue) > _MOST_DOWNSETS:
            raise UsageError(
                f"stages on several devices: the cost graph has more than {_MOST_DOWNSETS:,} downsets to try",
                help=f"plan without {argument('contiguous')}",
            )
    return np.array([[bool(mask >> index & 1) for index in range(len(needs))] for mask in sorted(queue, key=_size)])


def _size(mask: int) -> int:
    return mask.bit_count()


def _loads(graph: CostGraph, inside: NDArray[np.bool_], *, moves_values: bool) -> NDArray[np.float64]:
    """`loads[i, j]`: load of a device with the nodes in downset j and not in i; infinite if i is no subset of j."""
    number = {node.id: index for index, node in enumerate(graph.nodes)}
    compute = inside @ np.array([node.accelerator_cost for node in graph.nodes])
    touched = np.zeros((len(graph.nodes), len(graph.values)))
    for index, value in enumerate(graph.values):
        touched[[number[name] for name in {value.source, *value.targets}], index] = 1
    held, whole = inside @ touched, touched.sum(axis=0)
    costs = np.array([value.cost if moves_values else 0.0 for value in graph.values])
    rows: list[NDArray[np.float64]] = []
    for begin in range(len(inside)):
        new = held - held[begin]
        moved = ((new > 0) & (new < whole)) @ costs
        is_part = ~(inside[begin] & ~inside).any(axis=1)
        rows.append(np.where(is_part, compute - compute[begin] + moved, np.inf))
    return np.array(rows)


def _stages(
    graph: CostGraph,
    inside: NDArray[np.bool_],
    shared: dict[int, NDArray[np.float64]],
    best: Sequence[NDArray[np.float64]],
    choice: dict[tuple[int, int], tuple[int, int]],
) -> list[ReplicatedStage]:
    stages: list[ReplicatedStage] = []
    used, end = len(best) - 1, len(inside) - 1
    while end:
        # Where fewer devices are as good, the choice was copied from them.
        while best[used - 1][end] == best[used][end]:
            used -= 1
        begin, count = choice[used, end]
        nodes = tuple(graph.nodes[index].id for index in np.flatnonzero(inside[end] & ~inside[begin]))
        stages.append(ReplicatedStage(nodes=nodes, num_devices=count, load=float(shared[count][begin, end])))
        used, end = used - count, begin
    return stages[::-1]
