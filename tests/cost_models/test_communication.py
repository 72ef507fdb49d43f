"""Messages alone, in a row and together: formulas by hand, and bounds."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalogue import device_named
from cost_models.communication import in_series, transfer_seconds
from cost_models.hardware import Link
from cost_models.network import Network, concurrent_seconds
from cost_models.topology import Topology, TopologyDevice, Uplink

FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def wire(latency_seconds, bytes_per_second, name="wire"):
    return Link(
        name=name,
        latency_seconds=latency_seconds,
        bandwidth_bytes_per_second=bytes_per_second,
        source="a test",
        date="2025-01",
    )


ROPE = wire(2.0, 10.0)
QUICK, SLOW = wire(0.5, 100.0, "quick"), wire(3.0, 10.0, "slow")


def devices(count):
    return [TopologyDevice(name=f"GPU:{i}", device=device_named("t4"), memory_bytes=0) for i in range(count)]


def uniform(count, link=ROPE):
    return Topology.uniform(devices(count), link)


def hosts(num_hosts, per_host, uplink=None):
    nics = [
        Uplink(name=f"nic {h}", devices=frozenset(range(h * per_host, (h + 1) * per_host)), link=uplink)
        for h in range(num_hosts)
        if uplink is not None
    ]
    numbers = [host for host in range(num_hosts) for _ in range(per_host)]
    return Topology.of_hosts(devices(len(numbers)), numbers, within=QUICK, between=SLOW, uplinks=nics)


# Links in a row


def test_what_is_staged_takes_each_hop_one_after_the_other():
    up, down = wire(1.0, 10.0, "up"), wire(0.5, 40.0, "down")
    staged = in_series([up, down])
    assert (staged.name, staged.latency_seconds) == ("up+down", 1.5)
    assert staged.bandwidth_bytes_per_second == pytest.approx(8.0)  # 1 / (1/10 + 1/40)
    assert transfer_seconds(80, staged) == pytest.approx((1.0 + 80 / 10) + (0.5 + 80 / 40))
    assert in_series([up]) is up
    with pytest.raises(ValueError, match="at least one link"):
        in_series([])


@FEW
@given(st.integers(0, 10**9), st.lists(st.tuples(st.floats(0, 1), st.floats(1.0, 1e9)), min_size=1, max_size=5))
def test_a_way_takes_the_sum_of_its_hops(size, numbers):
    hops = [wire(*pair) for pair in numbers]
    assert transfer_seconds(size, in_series(hops)) == pytest.approx(sum(transfer_seconds(size, hop) for hop in hops))


# Transfers at the same time


def test_two_on_one_link_have_half_of_it_each():
    topology = uniform(3)
    assert concurrent_seconds(topology, [(0, 1, 30)]) == (2.0 + 3.0,)
    assert concurrent_seconds(topology, [(0, 1, 30), (0, 1, 30)]) == pytest.approx((2.0 + 6.0, 2.0 + 6.0))
    # The short one ends after 2 s at half speed; the other then has 20 of its 30 bytes left, at full speed.
    assert concurrent_seconds(topology, [(0, 1, 10), (0, 1, 30)]) == pytest.approx((2.0 + 2.0, 2.0 + 4.0))


def test_other_pairs_and_the_way_back_share_nothing():
    together = concurrent_seconds(uniform(3), [(0, 1, 30), (1, 0, 30), (1, 2, 30), (2, 2, 30), (0, 2, 0)])
    assert together == (5.0, 5.0, 5.0, 0.0, 2.0)


def test_an_uplink_is_shared_by_all_that_cross_it_in_one_direction():
    topology = hosts(2, 2, uplink=wire(0.0, 10.0, "nic"))  # SLOW: 3 s and 10 bytes/s for each pair
    assert concurrent_seconds(topology, [(0, 2, 40), (1, 3, 40)]) == pytest.approx((3 + 8.0, 3 + 8.0))
    assert concurrent_seconds(topology, [(0, 2, 40), (3, 1, 40)]) == pytest.approx((3 + 4.0, 3 + 4.0))
    # Within the host nobody crosses it.
    assert concurrent_seconds(topology, [(0, 2, 40), (0, 1, 40)]) == pytest.approx((3 + 4.0, 0.5 + 0.4))


def test_what_one_cannot_use_goes_to_the_others():
    # An uplink of 12 bytes/s; one pair has a link of 2 bytes/s only, so two others have 5 each.
    thin, thick = wire(0.0, 2.0, "thin"), wire(0.0, 100.0, "thick")
    rows = [[thick] * 4 for _ in range(4)]
    rows[0][1] = thin
    nic = Uplink(name="nic", devices=frozenset({0}), link=wire(0.0, 12.0))
    topology = Topology(devices=tuple(devices(4)), links=tuple(map(tuple, rows)), uplinks=(nic,))
    assert concurrent_seconds(topology, [(0, 1, 20), (0, 2, 25), (0, 3, 25)]) == pytest.approx((10.0, 5.0, 5.0))


@FEW
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 10**6)), max_size=8),
    st.sampled_from([None, 5.0, 50.0]),
)
def test_nothing_is_faster_than_alone_nor_slower_than_one_by_one(transfers, nic):
    topology = hosts(2, 2, uplink=None if nic is None else wire(0.0, nic, "nic"))
    together = concurrent_seconds(topology, transfers)
    alone = [concurrent_seconds(topology, [transfer])[0] for transfer in transfers]
    moved = [
        max(0.0, one - topology.link(a, b).latency_seconds) for (a, b, _), one in zip(transfers, alone, strict=True)
    ]
    for (a, b, _), end, one in zip(transfers, together, alone, strict=True):
        if a != b:
            assert end >= one * (1 - 1e-9)
            assert end <= topology.link(a, b).latency_seconds + sum(moved) * (1 + 1e-9)
        else:
            assert end == 0.0


# Transfers as time goes by


def arrivals(topology, sent):
    """Arrival of each transfer (source, target, bytes, moment), sent in the order of time."""
    network, found = Network(topology), {}

    def take(until):
        while network.next_seconds <= until < math.inf or (until == math.inf and network.next_seconds < math.inf):
            found.update((arrival.key, arrival) for arrival in network.arrivals())

    for key, (source, target, size, moment) in sorted(enumerate(sent), key=lambda one: one[1][3]):
        take(moment)
        known = network.send(key, source, target, size, moment)
        if known is not None:
            found[key] = known
    take(math.inf)
    return [(found[key].start_seconds, found[key].end_seconds) for key in range(len(sent))]


def one_uplink(count, bytes_per_second, latency_seconds=0.0, pair_rate=1e9):
    """`count` devices of one host, each with a partner on another, behind one adapter."""
    nic = Uplink(name="nic", devices=frozenset(range(count)), link=wire(0.0, bytes_per_second, "nic"))
    return replace(uniform(2 * count, wire(latency_seconds, pair_rate)), uplinks=(nic,))


def test_a_transfer_that_joins_slows_the_other_down_and_one_that_ends_speeds_it_up():
    # 10 bytes/s in all. The first has 10 of its 40 bytes left when the second joins; both go at 5 until it has ended,
    # and the second's other 20 bytes at 10. Latency is added behind.
    topology = one_uplink(2, 10.0, latency_seconds=0.5)
    assert arrivals(topology, [(0, 2, 40, 0.0), (1, 3, 30, 3.0)]) == [
        (0.0, pytest.approx(5.5)),
        (3.0, pytest.approx(7.5)),
    ]


def test_a_link_carries_one_transfer_at_a_time_whatever_else_it_shares():
    topology = one_uplink(2, 10.0, latency_seconds=0.5)
    assert arrivals(topology, [(0, 2, 20, 0.0), (0, 2, 20, 1.0)]) == [(0.0, 2.5), (2.5, 5.0)]
    assert arrivals(uniform(2), [(0, 1, 30, 0.0), (0, 1, 30, 1.0)]) == [(0.0, 5.0), (5.0, 10.0)]


def test_a_way_through_host_memory_takes_its_devices_first_and_last_link():
    hop = wire(0.5, 10.0, "slot")
    staged = uniform(4, in_series([hop, hop]))
    assert staged.channels(0, 3) == {(0, 3): 5.0, "device 0 slot out": 10.0, "device 3 slot in": 10.0}
    alone = (0.0, 1.0 + 20 / 5)
    assert arrivals(staged, [(0, 1, 20, 0.0)]) == [alone]
    # Two take turns on the slot of device 0, which is idle half of the time; three have a third of it each.
    assert arrivals(staged, [(0, 1, 20, 0.0), (0, 2, 20, 0.0)]) == [alone] * 2
    assert arrivals(staged, [(0, 1, 20, 0.0), (0, 2, 20, 0.0), (0, 3, 20, 0.0)]) == [(0.0, pytest.approx(7.0))] * 3
    # Likewise into one device; in and out of it share nothing.
    assert arrivals(staged, [(1, 0, 20, 0.0), (2, 0, 20, 0.0), (3, 0, 20, 0.0)]) == [(0.0, pytest.approx(7.0))] * 3
    assert arrivals(staged, [(1, 0, 20, 0.0), (2, 0, 20, 0.0), (0, 3, 20, 0.0)]) == [alone] * 3


bursts = st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.0, 100.0)), min_size=1, max_size=6)


@FEW
@given(bursts, st.floats(1.0, 1e6))
def test_an_uplink_is_never_idle_while_something_waits_for_it(transfers, rate):
    topology = one_uplink(len(transfers), rate, pair_rate=1e15)
    sent = [(index, len(transfers) + index, size, moment) for index, (size, moment) in enumerate(transfers)]
    busy_until = 0.0
    for size, moment in sorted(transfers, key=lambda one: one[1]):
        busy_until = max(busy_until, moment) + size / rate
    assert max(end for _, end in arrivals(topology, sent)) == pytest.approx(busy_until, rel=1e-6)


@FEW
@given(bursts, st.floats(1.0, 1e6), st.floats(1.0, 10.0), st.floats(1.0, 1e6))
def test_no_transfer_is_faster_over_a_narrower_uplink_or_for_having_one(transfers, rate, ratio, pair_rate):
    sent = [(index, len(transfers) + index, size, moment) for index, (size, moment) in enumerate(transfers)]
    narrow, wide = (arrivals(one_uplink(len(sent), r, 0.25, pair_rate), sent) for r in (rate, rate * ratio))
    without = arrivals(uniform(2 * len(sent), wire(0.25, pair_rate)), sent)
    for (_, slowest), (_, slower), (_, free) in zip(narrow, wide, without, strict=True):
        assert slowest >= slower * (1 - 1e-9)
        assert slower >= free * (1 - 1e-9)


def test_sizes_below_nothing_are_refused():
    with pytest.raises(ValueError, match="cannot send -1 bytes"):
        concurrent_seconds(uniform(2), [(0, 1, -1)])
