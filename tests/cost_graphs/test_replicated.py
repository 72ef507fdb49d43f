"""Stages on several devices: against all chains tried one by one, and what PipeDream's optimizer makes of a chain."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from instances import graph

from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.replicated import best_replicated_chain
from partitioner.errors import UsageError


def stage_load(of: CostGraph, chosen: set[str], count: int) -> float:
    """Per batch and device, in ms: work, values that come in or go out, and 1 GB/s for sums of gradients."""
    nodes = [node for node in of.nodes if node.id in chosen]
    moved = sum(v.cost for v in of.values if 0 < len(chosen & {v.source, *v.targets}) < 1 + len(v.targets))
    sums = 4 * (count - 1) / count * sum(node.memory_bytes for node in nodes) / 1e9 * 1e3
    return (sum(node.accelerator_cost for node in nodes) + moved + sums) / count


def all_chains(of: CostGraph, num_devices: int) -> Iterator[float]:
    """Every way to give nodes to stages in a row such that none comes before what it needs; every number of devices."""
    names = [node.id for node in of.nodes]
    for counts in (
        c for n in range(1, num_devices + 1) for c in itertools.product(range(1, num_devices + 1), repeat=n)
    ):
        if sum(counts) <= num_devices:
            for places in itertools.product(range(len(counts)), repeat=len(names)):
                at = dict(zip(names, places, strict=True))
                if all(at[value.source] <= at[target] for value in of.values for target in value.targets):
                    stages = [{name for name in names if at[name] == stage} for stage in range(len(counts))]
                    yield max(stage_load(of, s, count) for s, count in zip(stages, counts, strict=True) if s)


@pytest.mark.parametrize("seed", range(12))
def test_all_chains_tried_are_no_better(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 5)
    of = graph(
        [float(chance.randint(1, 9)) for _ in range(size)],
        [(a, b) for b in range(size) for a in range(b) if chance.random() < 0.5],
        [chance.choice([0.5, 1.0, 4.0]) for _ in range(size)],
        memory_bytes=[chance.choice([0.0, 1e6, 5e6]) for _ in range(size)],
    )
    stages = best_replicated_chain(of, 3)
    assert max(stage.load for stage in stages) == pytest.approx(min(all_chains(of, 3)))
    assert sorted(name for stage in stages for name in stage.nodes) == [node.id for node in of.nodes]
    assert sum(stage.num_devices for stage in stages) <= 3
    for stage in stages:
        assert stage.load == pytest.approx(stage_load(of, set(stage.nodes), stage.num_devices))


def test_work_is_shared_where_parameters_are_few() -> None:
    """As in VGG: 30 ms of work without parameters, then 8 ms with 20 MB of them."""
    of = graph([30.0, 8.0], [(0, 1)], [3.0, 0.0], memory_bytes=[0.0, 20e6])
    first, second = best_replicated_chain(of, 4)
    assert (first.nodes, first.num_devices, first.load) == (("0",), 3, pytest.approx(11.0))
    assert (second.nodes, second.num_devices, second.load) == (("1",), 1, pytest.approx(11.0))
    # Values that move for nothing: 10 and 8 ms; sharing the 8 ms too would take (38 + 60) / 4.
    assert [stage.load for stage in best_replicated_chain(of, 4, moves_values=False)] == pytest.approx([10.0, 8.0])


def test_too_many_downsets_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 4,000 downsets"):
        best_replicated_chain(graph([1.0] * 13, []), 2)
