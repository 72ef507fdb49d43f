"""Seconds that replicas take to sum gradients as steps are emitted: all to all, a part of each sum on each twin.

Every twin sends every other its part of the values, sums what it gets, and sends the sum to all. What a device sends
over links of one kind leaves it one after the other, as through the port of a switch; uplinks carry what crosses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cost_models.communication import transfer_seconds
from cost_models.hardware import Link
from cost_models.topology import Topology


def exchange_seconds(size_bytes: float, topology: Topology, twins: Sequence[int]) -> float:
    """Seconds until every twin has the sums of tensors of this size in all.

    In each of two rounds every twin sends every other an n-th. Small tensors are summed whole, but twins take turns.
    """
    part = size_bytes / len(twins)
    slowest = 0.0
    for source in twins:
        row = topology.links[source]
        links = {id(row[target]): row[target] for target in twins if target != source}
        counts: Counter[Link] = Counter()
        # By identity first: of hundreds of links few are different objects, and comparing those takes long.
        for key, count in Counter(id(row[target]) for target in twins if target != source).items():
            counts[links[key]] += count
        slowest = max([slowest, *(count * transfer_seconds(part, link) for link, count in counts.items())])
    for uplink in topology.uplinks:
        inside = sum(twin in uplink.devices for twin in twins)
        if crossing := inside * (len(twins) - inside):
            slowest = max(slowest, transfer_seconds(crossing * part, uplink.link))
    return 2 * slowest


def shared_sum_seconds(size_bytes: float, num_tensors: int, topology: Topology, twins: Sequence[int]) -> float:
    """Seconds until twins that share memory have summed tensors of this size in all, taking turns at whole ones."""
    device = topology.devices[twins[0]].device
    moved = (len(twins) + 1) * size_bytes
    launches = num_tensors * device.launch_overhead_seconds
    return (moved / device.memory_bandwidth_bytes_per_second + launches) / len(twins)
