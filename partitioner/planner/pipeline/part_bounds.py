"""What a device that holds a part of the items needs at the least in a step in one piece: heads, work and tails.

An op starts once the longest path to it has been computed, its head, and the longest path behind it, its tail, follows
it. Of the ops of a device with a head and a tail of so much at the least, the first starts after such a head, and such
a tail follows the last; between, the device has the work of all of them (Carlier, "The one-machine sequencing problem",
1982). Ops that no row of the batch reaches, such as casts of weights, are left out of the work.

For a given part it is also known which tensors enter and leave it: paths are longer by their transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.pipeline.op_places import Floats, depending_on_rows
from partitioner.planner.pipeline.ordered_items import between

Part = tuple[int, int]
"""Items from a place in their order to another one, which is not included."""

# Heads and tails that are told apart.
_NUM_HEADS, _NUM_TAILS = 24, 12


@dataclass(frozen=True, kw_only=True)
class StepOps:
    """The ops of a step, in graph order.

    Attributes:
        seconds: Of each op, on its fastest device.
        is_counted: Whether it counts as work of its device.
        place: The place of its item in the order.
        sources: What it waits for: the index of an op, and the seconds of a transfer from it over the fastest link.
        num_items: Items.
    """

    seconds: Floats
    is_counted: NDArray[np.bool_]
    place: NDArray[np.intp]
    sources: Sequence[Sequence[tuple[int, float]]]
    num_items: int

    @classmethod
    def of(cls, costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> StepOps:
        """Those of a step whose items are in an order."""
        graph = costed.graph
        rank = {item: place for place, item in enumerate(order)}
        index = {op.name: number for number, op in enumerate(graph.ops)}
        latency, seconds_per_byte = _fastest(costed.topology)
        sources: list[list[tuple[int, float]]] = []
        for op in graph.ops:
            waits = {index[name]: latency for name in op.control_inputs}
            for tensor in map(graph.tensor.__getitem__, op.inputs):
                source, seconds = index[tensor.producer], latency + tensor.size_bytes * seconds_per_byte
                waits[source] = max(waits.get(source, 0.0), seconds)
            sources.append(list(waits.items()))
        seconds = np.array([min(row) for row in costed.seconds])
        by_row = depending_on_rows(graph)
        return cls(
            seconds=seconds,
            is_counted=np.array([op.name in by_row for op in graph.ops]) & (seconds > 0),
            place=np.array([rank[coarsening.item_of[op.name]] for op in graph.ops]),
            sources=sources,
            num_items=len(order),
        )

    @property
    def num_waits(self) -> int:
        """Pairs of an op and one that it waits for."""
        return sum(map(len, self.sources))


def seconds_of_all_parts(ops: StepOps) -> Floats:
    """`(n + 1, n + 1)`: entry i, j bounds the step if a device holds items i to j; transfers take no time."""
    heads, tails = (values[:, 0] for values in _heads_and_tails(ops, [(0, ops.num_items)]))
    seconds = np.zeros((ops.num_items + 1, ops.num_items + 1))
    counted = ops.is_counted
    for head, tail in product(_steps(heads[counted], _NUM_HEADS), _steps(tails[counted], _NUM_TAILS)):
        chosen = counted & (heads >= head) & (tails >= tail)
        work = between(
            _sums(np.bincount(ops.place[chosen], ops.seconds[chosen], minlength=ops.num_items).astype(float))
        )
        np.maximum(seconds, np.where(work > 0, head + work + tail, 0.0), out=seconds)
    return seconds


def seconds_with_transfers(ops: StepOps, parts: Sequence[Part]) -> Floats:
    """The same for each of some parts, with transfers of what enters and leaves the part."""
    counted = np.flatnonzero(ops.is_counted)
    heads, tails = (values[counted] for values in _heads_and_tails(ops, parts))
    place, seconds = ops.place[counted], ops.seconds[counted]
    most = np.zeros(len(parts))
    for number, (start, end) in enumerate(parts):
        own = np.flatnonzero((place >= start) & (place < end))
        own = own[np.argsort(-tails[own, number], kind="stable")]
        head, tail, work = heads[own, number], tails[own, number], seconds[own]
        for least in _steps(head, _NUM_HEADS):
            later = head >= least
            most[number] = max(most[number], least + (np.cumsum(work[later]) + tail[later]).max())
    return most


def _heads_and_tails(ops: StepOps, parts: Sequence[Part]) -> tuple[Floats, Floats]:
    """`(ops, parts)`: the longest paths to each op, and those behind it, without itself, where parts are apart."""
    places = np.arange(ops.num_items)
    is_inside = np.array([(places >= start) & (places < end) for start, end in parts]).T
    shape = len(ops.seconds), len(parts)
    heads, tails = np.zeros(shape), np.zeros(shape)
    waits = [
        (target, source, seconds * (is_inside[ops.place[source]] ^ is_inside[ops.place[target]]))
        if ops.place[source] != ops.place[target]
        else (target, source, 0.0)
        for target, sources in enumerate(ops.sources)
        for source, seconds in sources
    ]
    for target, source, transfer in waits:
        np.maximum(heads[target], heads[source] + (ops.seconds[source] + transfer), out=heads[target])
    for target, source, transfer in reversed(waits):
        np.maximum(tails[source], tails[target] + (ops.seconds[target] + transfer), out=tails[source])
    return heads, tails


def _fastest(topology: Topology) -> tuple[float, float]:
    """The least latency of a link between two devices, and the fewest seconds per byte."""
    rows = {id(row): row for row in topology.links}.values()
    links = {id(link): link for row in rows for link in row}.values()
    latency = min(link.latency_seconds for link in links)
    return latency, 1 / max(link.bandwidth_bytes_per_second for link in links)


def _steps(values: Floats, most: int) -> list[float]:
    """Some of the values, evenly spread over their order, the least among them."""
    ordered = np.unique(values)
    return ordered[np.unique(np.linspace(0, len(ordered) - 1, most).astype(int))].tolist() if len(ordered) else []


def _sums(values: Floats) -> Floats:
    return np.insert(np.cumsum(values), 0, 0.0)
