"""Items of a step that several layouts share."""

from __future__ import annotations

from graphs import microbatching, pipeline, topology

from partitioner.ir.plan import Strategy
from partitioner.planner.layouts.search import SearchResult, search
from partitioner.planner.layouts.step_items import StepItems


def planned(num_devices: int, items: StepItems | None = None) -> SearchResult:
    costed = pipeline(6).costed(topology(num_devices))
    space = microbatching(costed, 4)
    return search(costed, strategy=Strategy.AUTO, time_limit_seconds=15.0, search_space=space, items=items)


def test_items_of_a_layout_of_one_device_do_for_one_of_three() -> None:
    of_one = StepItems.of(pipeline(6).costed(topology(1)))
    own, shared = planned(3), planned(3, of_one.anywhere(3))
    assert shared.schedule.step_seconds == own.schedule.step_seconds
    assert shared.placement == own.placement
    assert set(shared.placement.values()) == {0, 1, 2}


def test_items_are_put_in_order_once_for_all_layouts() -> None:
    of_one = StepItems.of(pipeline(6).costed(topology(1)))
    of_three = of_one.anywhere(3)
    assert of_three.in_order.places is of_one.in_order.places
    assert set(of_three.fine.allowed) == set(of_three.coarse.allowed) == {frozenset({0, 1, 2})}
