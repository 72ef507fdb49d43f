"""Seconds over boundaries between stages: each over its own link, all others where they take the least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import device, link

from cost_models.topology import Topology, TopologyDevice, Uplink
from partitioner.ir.devices import DeviceName
from partitioner.planner.pipeline.hops import Hop, hops_between, seconds_before, seconds_behind
from partitioner.planner.pipeline.op_places import Floats

CALL_SECONDS = 0.125
# By boundary of four items: its bytes there and back. Gradients cross the last two only.
THERE, BACK = np.array([0.0, 256.0, 512.0, 1024.0, 0.0]), np.array([0.0, 0.0, 512.0, 256.0, 0.0])


def two_hosts() -> Topology:
    placed = [
        TopologyDevice(
            name=DeviceName(job="worker", task=host, type="GPU", index=index).canonical,
            device=device(),
            memory_bytes=2**30,
        )
        for host, index in ((0, 0), (0, 1), (1, 0))
    ]
    return Topology.of_hosts(placed, [0, 0, 1], within=link(0.25, 1024.0), between=link(2.0, 256.0))


def hops(devices: Sequence[int], *, counted: tuple[Floats, Floats] = (THERE, BACK)) -> list[Hop]:
    return hops_between(devices, two_hosts(), crossing=(THERE, BACK), counted=counted, call_seconds=CALL_SECONDS)


def test_each_boundary_is_over_the_link_of_its_devices() -> None:
    within, between = hops([0, 1, 2])
    np.testing.assert_allclose(within.there, [0.0, 0.5, 0.75, 1.25, 0.0])
    np.testing.assert_allclose(within.back, [0.0, 0.0, 0.75, 0.5, 0.0])
    np.testing.assert_allclose(between.there, [0.0, 3.0, 4.0, 6.0, 0.0])
    np.testing.assert_allclose(between.back, [0.0, 0.0, 4.0, 3.0, 0.0])


def test_an_uplink_may_be_narrower_than_the_link() -> None:
    uplinks = (Uplink(name="host 0", devices=frozenset({0, 1}), link=link(7.0, 128.0)),)
    machines = replace(two_hosts(), uplinks=uplinks)
    both = hops_between([0, 1, 2], machines, crossing=(THERE, BACK), counted=(THERE, BACK), call_seconds=CALL_SECONDS)
    np.testing.assert_allclose(both[0].there, hops([0, 1])[0].there)
    # The latency is that of the link, and no link is busy with it.
    np.testing.assert_allclose(both[1].there, [0.0, 4.0, 6.0, 10.0, 0.0])
    np.testing.assert_allclose(both[1].busy_there, [0.0, 2.0, 4.0, 8.0, 0.0])
    np.testing.assert_allclose(both[1].busy_back, [0.0, 0.0, 4.0, 2.0, 0.0])


def test_the_uplink_of_a_host_in_the_middle_carries_activations_and_gradients() -> None:
    """Device 2 alone is on the other host: what goes back to the first host leaves with what goes on to it."""
    uplinks = (Uplink(name="host 1", devices=frozenset({2}), link=link(7.0, 128.0)),)
    machines = replace(two_hosts(), uplinks=uplinks)
    _, behind = hops_between([0, 2, 1], machines, crossing=(THERE, BACK), counted=(THERE, BACK), call_seconds=0.0)
    np.testing.assert_allclose(behind.there, [0.0, 4.0, 6.0, 10.0, 0.0])
    np.testing.assert_allclose(behind.busy_there, [0.0, 2.0, 4.0, 8.0, 0.0])
    np.testing.assert_allclose(behind.busy, [0.0, 2.0, 8.0, 10.0, 0.0])


def test_what_crosses_takes_the_latency_even_where_it_does_not_count() -> None:
    (hop,) = hops([0, 2], counted=(np.zeros(5), np.zeros(5)))
    np.testing.assert_allclose(hop.there, [0.0, 2.0, 2.0, 2.0, 0.0])
    np.testing.assert_allclose(hop.back, [0.0, 0.0, 2.0, 2.0, 0.0])


def test_the_same_device_costs_a_call_alone() -> None:
    (hop,) = hops([1, 1])
    np.testing.assert_allclose(hop.called[0], CALL_SECONDS)
    np.testing.assert_allclose(hop.called[1], np.array([0, 0, 1, 1, 0]) * CALL_SECONDS)


def test_boundaries_before_and_behind_a_stage() -> None:
    """The slow link is between the last two stages, and counts as such for the first, which knows not where it is."""
    both = hops([0, 1, 2])
    there, back = seconds_before(both, 2)
    np.testing.assert_allclose(there[2], 4.0 + 0.5 + 2 * CALL_SECONDS)
    np.testing.assert_allclose(back[2], 4.0 + 0.0 + CALL_SECONDS)
    # Over the second boundary at the least 3 s there, where no gradient comes back.
    np.testing.assert_allclose(seconds_behind(both, 0)[3], (1.25 + 0.5) + 3.0 + 3 * CALL_SECONDS)
    assert seconds_before(both, 0) == (0.0, 0.0)
    assert seconds_behind(both, 2) == pytest.approx(0.0)
