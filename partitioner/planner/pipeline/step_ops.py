"""The ops of a step as arrays, with the items that hold them and the fewest seconds that they and transfers take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.op_places import Floats, depending_on_rows

Part = tuple[int, int]
"""Items from a place in their order to another one, which is not included."""

Sources = Sequence[tuple[int, float]]
"""What an op waits for: the index of an op, and the seconds of a transfer from it over the fastest link."""

Waits = Sequence[tuple[int, int, Floats | float]]
"""An op, one that it waits for, and the seconds of the transfer between them."""


@dataclass(frozen=True, kw_only=True)
class StepOps:
    """The ops of a step, in graph order, without those that take no time and wait for at most one op of their own item.

    Who waits for one of these waits for that op, or for nothing.

    Attributes:
        names: Of ops.
        seconds: Of each op, on its fastest device.
        waits_for_rows: Whether it differs from microbatch to microbatch, or waits for an op that does.
        place: The place of its item in the order.
        sources: What it waits for.
        num_items: Items.
        has_one_channel: Whether there are two devices, so that all that crosses one way is sent one after the other.
    """

    names: Sequence[str]
    seconds: Floats
    waits_for_rows: NDArray[np.bool_]
    place: NDArray[np.intp]
    sources: Sequence[Sources]
    num_items: int
    has_one_channel: bool

    @classmethod
    def of(cls, costed: CostedGraph, coarsening: Coarsening, order: Sequence[int]) -> StepOps:
        """Those of a step whose items are in an order."""
        graph = costed.graph
        rank = {item: place for place, item in enumerate(order)}
        latency, seconds_per_byte = _fastest(costed.topology)
        names: list[str] = []
        seconds: list[float] = []
        places: list[int] = []
        sources: list[Sources] = []
        # Of each op so far, itself or the one that is waited for in its place.
        index: dict[str, int | None] = {}
        for op, least in zip(graph.ops, costed.fastest_seconds, strict=True):
            waits: dict[int, float] = {}
            tensors = map(graph.tensor.__getitem__, op.inputs)
            moved = [(tensor.producer, tensor.size_bytes * seconds_per_byte) for tensor in tensors]
            for name, takes in [*moved, *((name, 0.0) for name in op.control_inputs)]:
                if (source := index[name]) is not None:
                    waits[source] = max(waits.get(source, 0.0), latency + takes)
            place = rank[coarsening.item_of[op.name]]
            if least == 0 and len(waits) < 2 and all(places[source] == place for source in waits):
                index[op.name] = next(iter(waits), None)
                continue
            index[op.name] = len(names)
            names.append(op.name)
            seconds.append(least)
            places.append(place)
            sources.append(list(waits.items()))
        waiting = set(depending_on_rows(graph))
        for op in graph.ops:  # an optimizer's moments are read, and variables updated, once they have been assigned
            if not waiting.isdisjoint(graph.sources[op.name]):
                waiting.add(op.name)
        return cls(
            names=names,
            seconds=np.array(seconds),
            waits_for_rows=np.array([name in waiting for name in names], dtype=bool),
            place=np.array(places, dtype=np.intp),
            sources=sources,
            num_items=len(order),
            has_one_channel=len(costed.topology.devices) == 2,
        )

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Whether an op counts as work of its device. Those that wait for no row, such as casts of weights, do not."""
        return self.waits_for_rows & (self.seconds > 0)

    @property
    def num_waits(self) -> int:
        """Pairs of an op and one that it waits for."""
        return sum(map(len, self.sources))

    def waits(self, parts: Sequence[Part]) -> Waits:
        """Each op, what it waits for, and the transfer between them if one of the parts is apart: 0 or `(parts,)`."""
        places = np.arange(self.num_items)
        is_inside = np.array([(places >= start) & (places < end) for start, end in parts]).T
        is_cut: dict[tuple[int, int], Floats] = {}
        waits: list[tuple[int, int, Floats | float]] = []
        for target, (place, sources) in enumerate(zip(self.place.tolist(), self.sources, strict=True)):
            for source, seconds in sources:
                transfer: Floats | float = 0.0
                if (between := (int(self.place[source]), place))[0] != place:
                    if between not in is_cut:
                        is_cut[between] = (is_inside[between[0]] ^ is_inside[place]).astype(np.float64)
                    transfer = is_cut[between] * seconds
                waits.append((target, source, transfer))
        return waits

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
