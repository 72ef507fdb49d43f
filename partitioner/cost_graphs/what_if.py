"""Gains of better devices for a cost graph: a further device, faster links, more memory; each is planned anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from partitioner.constraints.changes import GIB, gains
from partitioner.cost_graphs.request import CostGraphRequest
from partitioner.ir.devices import short_name
from partitioner.ir.plan import WhatIf


def what_if(request: CostGraphRequest, objective: float, held_bytes: Mapping[str, int]) -> tuple[WhatIf, ...]:
    """The gains of three changes.

    Args:
        request: The request of the plan.
        objective: The largest load of the plan.
        held_bytes: Memory of its nodes by device.
    """

    def objective_of(changed: CostGraphRequest) -> float:
        built, result = changed.solved()
        load = result.answer.max_load
        return objective if load is None else load * built.unit

    return gains(_changes(request, held_bytes), objective, request.graph.unit, objective_of)


def _changes(request: CostGraphRequest, held_bytes: Mapping[str, int]) -> Iterator[tuple[str, CostGraphRequest]]:
    accelerators = [place for place in request.places if not place.is_cpu]
    if accelerators:
        yield f"one more device like {short_name(accelerators[-1].name)}", request.with_another_accelerator()
        halved = tuple(replace(value, cost=value.cost / 2) for value in request.graph.values)
        yield "twice the bandwidth of every link", replace(request, graph=replace(request.graph, values=halved))
    left = {
        place.name: place.capacity_bytes - held_bytes.get(place.name, 0)
        for place in request.places
        if place.capacity_bytes is not None
    }
    if left:
        tightest = min(left, key=lambda name: left[name])
        places = tuple(
            replace(place, capacity_bytes=(place.capacity_bytes or 0) + GIB) if place.name == tightest else place
            for place in request.places
        )
        yield f"1 GiB more on {short_name(tightest)}", replace(request, places=places)
