"""The gains of a better machine: one more device, faster links, more memory; each planned again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from partitioner.constraints.changes import GIB, gains
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Objective, WhatIf
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout


def what_if(
    planner: LayoutPlanner, replan: Callable[[LayoutPlanner], ParallelLayout], layout: ParallelLayout
) -> tuple[WhatIf, ...]:
    """The gains of three changes, each planned by the same request.

    Args:
        planner: The planner of the layout.
        replan: Plans the request with a given planner.
        layout: The layout without changes.
    """
    is_memory = planner.objective is Objective.MEMORY
    before = float(layout.largest_peak_bytes) if is_memory else layout.step_seconds

    def objective_of(changed: LayoutPlanner) -> float:
        planned = replan(changed)
        return float(planned.largest_peak_bytes) if is_memory else planned.step_seconds

    return gains(_changes(planner, layout), before, "bytes" if is_memory else "s", objective_of)


def _changes(planner: LayoutPlanner, layout: ParallelLayout) -> Iterator[tuple[str, LayoutPlanner]]:
    machines = planner.machines
    devices = machines.devices
    last = len(devices) - 1
    yield f"one more device like {short_name(devices[last].name)}", planner.with_another_device(last)
    if len(devices) > 1:
        yield "twice the bandwidth of every link", planner.with_faster_links(2.0)
    first = layout.groups[0]
    peak = layout.result.schedule.peak
    used = set(layout.result.placement.values())
    left = {place: devices[first[place]].memory_bytes - peak[devices[first[place]].name].total_bytes for place in used}
    tightest = min(left, key=lambda place: (left[place], place))
    # Its peers in other replicas hold the same, so it takes as much on each.
    peers = list(dict.fromkeys(group[tightest] for group in layout.groups))
    sizes = [placed.memory_bytes + (GIB if index in peers else 0) for index, placed in enumerate(devices)]
    names = ", ".join(short_name(devices[index].name) for index in peers)
    yield f"1 GiB more on {names}", planner.with_memory(sizes)
