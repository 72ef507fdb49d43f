"""Seconds of collectives: what many devices send each other to sum, gather or spread one tensor.

Costs are latency and bytes; the arithmetic of a sum is left out, since memory is far faster than any link. A size is
that of the whole tensor. Formulas, for n devices, a latency of a and b bytes per second:

    ring reduce-scatter, ring all-gather   (n - 1) a + (n - 1)/n size / b
    ring all-reduce                        both, one after the other
    binomial tree broadcast, reduce        ceil(log2 n) (a + size / b)
    tree all-reduce                        both, one after the other

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", International
Journal of High Performance Computing Applications 19(1), 2005. No all-reduce sends fewer than 2 (n - 1)/n size bytes
from each device, which the ring attains: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", Journal of Parallel and Distributed Computing 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.communication import transfer_seconds
from cost_models.hardware import Link
from cost_models.network import concurrent_seconds
from cost_models.topology import Topology


def reduce_scatter_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds until each device has its n-th of the sum, by a ring.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    _check(size_bytes, num_devices)
    return (num_devices - 1) * transfer_seconds(size_bytes / num_devices, link)


def all_gather_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds until each device has the n-ths of all, by a ring.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    return reduce_scatter_seconds(size_bytes, num_devices, link)


def ring_all_reduce_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds until each device has the sum: a ring reduce-scatter, then a ring all-gather.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    return reduce_scatter_seconds(size_bytes, num_devices, link) + all_gather_seconds(size_bytes, num_devices, link)


def tree_broadcast_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds until each device has the tensor of one: those that have it double in every round.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    _check(size_bytes, num_devices)
    return (num_devices - 1).bit_length() * transfer_seconds(size_bytes, link)


def tree_all_reduce_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds until each device has the sum: up a binomial tree to one device, and down again.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    return 2 * tree_broadcast_seconds(size_bytes, num_devices, link)


def broadcast_seconds(size_bytes: float, num_devices: int, link: Link) -> float:
    """Seconds of the faster broadcast: a tree, or for large tensors a scatter and an all-gather (van de Geijn).

    The scatter halves what it sends in every round, down a tree: ceil(log2 n) a + (n - 1)/n size / b.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    tree = tree_broadcast_seconds(size_bytes, num_devices, link)
    rounds, share = (num_devices - 1).bit_length(), (num_devices - 1) / num_devices
    scatter = rounds * link.latency_seconds + share * size_bytes / link.bandwidth_bytes_per_second
    return min(tree, scatter + all_gather_seconds(size_bytes, num_devices, link))


def hierarchical_all_reduce_seconds(
    size_bytes: float, *, num_hosts: int, devices_per_host: int, within: Link, between: Link
) -> float:
    """Seconds until each device of several hosts has the sum.

    A reduce-scatter within each host, then an all-reduce of each device's part with its peers on the other hosts, then
    an all-gather within each host. `between` is what one device of a host has while all of them send.

    Raises:
        ValueError: The size is negative, or there is no host or no device.
    """
    inner = ring_all_reduce_seconds(size_bytes, devices_per_host, within)
    return inner + ring_all_reduce_seconds(size_bytes / devices_per_host, num_hosts, between)


def all_reduce_seconds(size_bytes: float, topology: Topology, devices: Sequence[int]) -> float:
    """Seconds of the fastest all-reduce of a tensor over these devices of a topology, each with its own links.

    Compares a ring, a tree and, where every host has as many devices, a ring within the hosts and one between them. All
    transfers of a round start together, share links and uplinks, and the slowest ends the round.

    Raises:
        ValueError: The size is negative, or there is no device.
    """
    _check(size_bytes, len(devices))
    by_host: dict[int, list[int]] = {}
    for device in devices:
        by_host.setdefault(topology.host(device), []).append(device)
    ordered = [device for host in by_host.values() for device in host]
    choices = [_rings(size_bytes, topology, [ordered]), _tree(size_bytes, topology, ordered)]
    sizes = {len(host) for host in by_host.values()}
    if len(by_host) > 1 and len(sizes) == 1:
        per_host = sizes.pop()
        peers = [list(peer) for peer in zip(*by_host.values(), strict=True)]
        inner = _rings(size_bytes, topology, list(by_host.values()))
        choices.append(inner + _rings(size_bytes / per_host, topology, peers))
    return min(choices)


def _rings(size_bytes: float, topology: Topology, rings: Sequence[Sequence[int]]) -> float:
    """All-reduces by rings of the same length, at the same time."""
    count = len(rings[0])
    if count == 1:
        return 0.0
    hops = [(ring[index - 1], ring[index], size_bytes / count) for ring in rings for index in range(count)]
    return 2 * (count - 1) * max(concurrent_seconds(topology, hops))


def _tree(size_bytes: float, topology: Topology, devices: Sequence[int]) -> float:
    total, step = 0.0, 1
    while step < len(devices):
        pairs = [(devices[i], devices[i - step]) for i in range(step, len(devices), 2 * step)]
        for sent in (pairs, [(b, a) for a, b in pairs]):  # up, and later down again
            total += max(concurrent_seconds(topology, [(a, b, size_bytes) for a, b in sent]))
        step *= 2
    return total


def _check(size_bytes: float, num_devices: int) -> None:
    if size_bytes < 0:
        raise ValueError(f"cannot send {size_bytes} bytes")
    if num_devices < 1:
        raise ValueError(f"{num_devices} devices, expected at least 1")
