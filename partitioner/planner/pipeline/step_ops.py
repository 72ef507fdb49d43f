"""The ops of a step as arrays, with the items that hold them and the fewest seconds that they and transfers take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.pipeline.op_places import Floats, depending_on_rows

Part = tuple[int, int]
"""Items from a place in their order to another one, which is not included."""

Sources = Sequence[tuple[int, float]]
"""What an op waits for: the index of an op, and the seconds of a transfer from it over the fastest link."""


@dataclass(frozen=True, kw_only=True)
class StepOps:
    """The ops of a step, in graph order.

    Attributes:
        seconds: Of each op, on its fastest device.
        depends_on_rows: Whether it differs from microbatch to microbatch.
        place: The place of its item in the order.
        sources: What it waits for.
        num_items: Items.
    """

    seconds: Floats
    depends_on_rows: NDArray[np.bool_]
    place: NDArray[np.intp]
    sources: Sequence[Sources]
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
        by_row = depending_on_rows(graph)
        return cls(
            seconds=np.array([min(row) for row in costed.seconds]),
            depends_on_rows=np.array([op.name in by_row for op in graph.ops]),
            place=np.array([rank[coarsening.item_of[op.name]] for op in graph.ops]),
            sources=sources,
            num_items=len(order),
        )

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Whether an op counts as work of its device. Those that no row reaches, such as casts of weights, do not."""
        return self.depends_on_rows & (self.seconds > 0)

    def waits(self, parts: Sequence[Part]) -> Iterator[tuple[int, int, Floats | float]]:
        """Each op, what it waits for, and the transfer between them if one of the parts is apart: 0 or `(parts,)`."""
        places = np.arange(self.num_items)
        is_inside = np.array([(places >= start) & (places < end) for start, end in parts]).T
        for target, sources in enumerate(self.sources):
            at = self.place[target]
            for source, seconds in sources:
                there = self.place[source]
                yield target, source, np.where(is_inside[there] ^ is_inside[at], seconds, 0.0) if there != at else 0.0

    @property
    def num_waits(self) -> int:
        """Pairs of an op and one that it waits for."""
        return sum(map(len, self.sources))

    def work(self, chosen: NDArray[np.bool_]) -> Floats:
        """`(n + 1,)`: the seconds of chosen ops of the first items."""
        of_items = np.bincount(self.place[chosen], self.seconds[chosen], minlength=self.num_items)
        return np.insert(np.cumsum(of_items, dtype=float), 0, 0.0)


def _fastest(topology: Topology) -> tuple[float, float]:
    """The least latency of a link between two devices, and the fewest seconds per byte."""
    rows = {id(row): row for row in topology.links}.values()
    links = {id(link): link for row in rows for link in row}.values()
    latency = min(link.latency_seconds for link in links)
    return latency, 1 / max(link.bandwidth_bytes_per_second for link in links)
