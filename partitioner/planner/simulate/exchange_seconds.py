"""Seconds to sum gradients over replicas, as emitted steps do: each peer computes a part of each sum.

Every peer sends every other peer its part of the values, sums the parts that it gets, and sends the sum to all. Where
processes have several peers each, the peers of a process do so first, and then each peer with those of the other
processes. A device sends over links of one kind one transfer after the other, as through the port of a switch; uplinks
carry all transfers that cross them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cost_models.communication import transfer_seconds
from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.hardware import Link
from cost_models.topology import Topology
from partitioner.ir.devices import equal_hosts, share_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Groups of peers (device indices) that exchange at the same time, and the bytes from each peer to each other.

    A round runs twice, once with parts of the gradients and once with parts of the sums.
    """

    groups: list[list[int]]
    part_bytes: float


def exchange_rounds(size_bytes: float, topology: Topology, peers: Sequence[int]) -> Iterator[Round]:
    """The rounds that sum tensors of this total size: between peers of each process, then across processes.

    Small tensors are not cut: peers take turns at summing them.
    """
    hosts = [[peers[place] for place in host] for host in equal_hosts([topology.devices[peer].name for peer in peers])]
    yield Round(groups=hosts, part_bytes=size_bytes / len(hosts[0]))
    if len(hosts) > 1:
        yield Round(groups=[list(places) for places in zip(*hosts, strict=True)], part_bytes=size_bytes / len(peers))


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTimes:
    """Seconds until every peer has all sums if nothing else is sent, and seconds that each uplink is busy."""

    seconds: float
    uplink_seconds: tuple[float, ...]


def sum_times(
    sum_bytes: float,
    row_bytes: float,
    *,
    num_tensors: int,
    topology: Topology,
    peers: Sequence[int],
    sharing: int = 1,
    num_messages: int = 1,
    num_gathered: int = 1,
    constants: GpuConstants = GPU,
) -> SumTimes:
    """Seconds to sum tensors over peers and to gather rows.

    Args:
        sum_bytes: Of the tensors that are summed.
        row_bytes: Of the rows that each peer has.
        num_tensors: How many there are of both.
        topology: The devices.
        peers: Indices of the devices that sum.
        sharing: How many replicas each peer works for; their gradients are summed there first.
        num_messages: In how many messages of equal size the bytes of sums between two peers are sent.
        num_gathered: How many tensors have the rows; each is a message.
        constants: Shares of peaks, of GPUs.
    """
    within, *between = exchange_rounds(sum_bytes, topology, peers)
    seconds, taken = 0.0, [0.0] * len(topology.uplinks)
    row_bytes *= sharing
    if sharing > 1:
        seconds += _added_seconds(sharing, sum_bytes, num_tensors, topology, peers[0])
    if len(peers) == 1:
        return SumTimes(seconds=seconds, uplink_seconds=tuple(taken))
    far = [(round_, num_messages) for round_ in (*between, *between)]
    if not share_memory([topology.devices[peer].name for peer in peers]):
        far.append((Round(groups=[list(peers)], part_bytes=row_bytes), num_gathered * sharing))
        row_bytes = 0.0
    if share_memory([topology.devices[peer].name for peer in within.groups[0]]):
        gathered = row_bytes * len(peers) / 2  # gathering takes half of what summing takes
        seconds += _shared_seconds(sum_bytes + gathered, num_tensors, topology, within.groups[0])
    else:
        far += [(within, num_messages)] * 2
    for round_, count in far:
        if not round_.part_bytes:
            continue
        message = replace(round_, part_bytes=round_.part_bytes / count)
        uplinks = [count * seconds for seconds in _uplink_seconds(message, topology)]
        ports = (count * _port_seconds(message.part_bytes, topology, group, constants) for group in message.groups)
        seconds += max([*uplinks, *ports])
        taken = [before + more for before, more in zip(taken, uplinks, strict=True)]
    return SumTimes(seconds=seconds, uplink_seconds=tuple(taken))


def _uplink_seconds(round_: Round, topology: Topology) -> list[float]:
    """Seconds that each uplink is busy in a round; both directions carry the same bytes."""
    seconds = []
    for uplink in topology.uplinks:
        crossing = 0
        for group in round_.groups:
            inside = sum(peer in uplink.devices for peer in group)
            crossing += inside * (len(group) - inside)
        seconds.append(transfer_seconds(crossing * round_.part_bytes, uplink.link) if crossing else 0.0)
    return seconds


def _port_seconds(part_bytes: float, topology: Topology, group: Sequence[int], constants: GpuConstants) -> float:
    """Seconds until the slowest peer has sent to all others, one after the other over links of one kind.

    GPUs reach a share of their links' bandwidth.
    """
    if all(topology.devices[peer].device.multiprocessors for peer in group):
        part_bytes /= constants.sum_share
    slowest = 0.0
    for source in group:
        row = topology.links[source]
        links = {id(row[target]): row[target] for target in group if target != source}
        counts: Counter[Link] = Counter()
        # By identity first: comparing hundreds of links takes long, and few are different objects.
        for key, count in Counter(id(row[target]) for target in group if target != source).items():
            counts[links[key]] += count
        slowest = max([slowest, *(count * transfer_seconds(part_bytes, link) for link, count in counts.items())])
    return slowest


def _shared_seconds(size_bytes: float, num_tensors: int, topology: Topology, peers: Sequence[int]) -> float:
    """Seconds until peers that share memory have summed tensors of this total size; peers take turns at tensors."""
    return _added_seconds(len(peers), size_bytes, num_tensors, topology, peers[0]) / len(peers)


def _added_seconds(count: int, size_bytes: float, num_tensors: int, topology: Topology, index: int) -> float:
    """Seconds until a device has added `count` copies of each tensor, of this total size."""
    device = topology.devices[index].device
    moved = (count + 1) * size_bytes
    return moved / device.memory_bandwidth_bytes_per_second + num_tensors * device.launch_overhead_seconds
