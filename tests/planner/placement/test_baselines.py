"""The simple placements that people make by hand."""

from __future__ import annotations

from graphs import chain

from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.placement.baselines import balanced_compute, equal_layers, greedy_by_bytes, single_device


def test_by_hand() -> None:
    costed = chain([1.0, 1.0, 1.0, 1.0, 4.0, 4.0], [4] * 6, [0, 0, 400, 100, 100, 0]).costed()
    coarsening = coarsen(costed)
    assert single_device(coarsening, 1) == (1,) * 6
    assert equal_layers(coarsening, 2) == (0, 0, 0, 1, 1, 1)
    assert equal_layers(coarsening, 3) == (0, 0, 1, 1, 2, 2)
    # 600 bytes: the middle of op2 is at 200, of op3 at 450
    assert greedy_by_bytes(costed, coarsening, 2) == (0, 0, 0, 1, 1, 1)
    # 12 seconds: the middle of op4 is at 6, where the second half begins
    assert balanced_compute(costed, coarsening, 2) == [(0, 0, 0, 0, 1, 1)]


def test_a_graph_without_parameters_stays_in_order() -> None:
    costed = chain([1.0] * 3, [4] * 3).costed()
    assert greedy_by_bytes(costed, coarsen(costed), 2) == (0, 0, 0)


def test_more_devices_than_items() -> None:
    costed = chain([1.0, 1.0], [4] * 2).costed()
    assert equal_layers(coarsen(costed), 8) == (2, 6)
