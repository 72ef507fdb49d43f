"""Seconds of messages: alone on a link, over several links in a row, and at the same time as others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cost_models.hardware import Link
from cost_models.topology import Channel, Topology


def transfer_seconds(size_bytes: float, link: Link) -> float:
    """Seconds to bring `size_bytes` over an idle link: alpha + bytes / beta.

    Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20(3),
    1994. A tensor of no bytes is sent all the same and takes the latency.

    Raises:
        ValueError: The size is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"cannot send {size_bytes} bytes")
    return link.latency_seconds + size_bytes / link.bandwidth_bytes_per_second


def in_series(links: Sequence[Link]) -> Link:
    """What several links in a row are to a message that each stores before it sends it on.

    So where a device cannot reach another, a tensor goes to the host's memory and from there to the other device:
    latencies add up, and so do the seconds per byte.

    Raises:
        ValueError: There is no link.
    """
    if not links:
        raise ValueError("a way needs at least one link")
    if len(links) == 1:
        return links[0]
    return Link(
        name="+".join(link.name for link in links),
        latency_seconds=sum(link.latency_seconds for link in links),
        bandwidth_bytes_per_second=1 / sum(1 / link.bandwidth_bytes_per_second for link in links),
        source="; ".join(dict.fromkeys(link.source for link in links)),
        date=max(link.date for link in links),
        latency_source="; ".join(dict.fromkeys(link.latency_source or link.source for link in links)),
        latency_date=max(link.latency_date or link.date for link in links),
    )


def concurrent_seconds(topology: Topology, transfers: Sequence[tuple[int, int, float]]) -> tuple[float, ...]:
    """Seconds until each of several transfers has arrived that start at the same time.

    A transfer has the link from its source to its target, and shares it with others of the same pair and direction,
    and the uplinks on its way with all that cross them. Bandwidth is shared max-min fair at any time (Bertsekas and
    Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2): each transfer gets the same, and what one cannot use,
    since it is held up elsewhere, goes to the others. Latency is added at the end.

    Args:
        topology: What the transfers run on.
        transfers: Source, target and bytes of each.

    Returns:
        Seconds of each transfer, in the order given; 0 where source and target are the same.

    Raises:
        ValueError: A size is negative.
    """
    negative = [size for _, _, size in transfers if size < 0]
    if negative:
        raise ValueError(f"cannot send {negative[0]} bytes")
    moved = [index for index, (source, target, _) in enumerate(transfers) if source != target]
    ways = {index: topology.channels(*transfers[index][:2]) for index in moved}
    ends = _end_seconds({index: transfers[index][2] for index in moved}, ways)
    return tuple(
        ends[index] + topology.link(source, target).latency_seconds if index in ends else 0.0
        for index, (source, target, _) in enumerate(transfers)
    )


def _end_seconds(sizes: Mapping[int, float], ways: Mapping[int, Mapping[Channel, float]]) -> dict[int, float]:
    """When the last byte of each transfer leaves: rates hold until one ends, and are then shared out anew."""
    ends = {index: 0.0 for index, size in sizes.items() if size == 0}
    left = {index: size for index, size in sizes.items() if size > 0}
    now = 0.0
    while left:
        rates = _fair_rates({index: ways[index] for index in left})
        step = min(left[index] / rates[index] for index in left)
        now += step
        # What ends together must not be left with a rest of rounding.
        done = [index for index in left if left[index] / rates[index] <= step * (1 + 1e-9)]
        ends |= dict.fromkeys(done, now)
        left = {index: size - rates[index] * step for index, size in left.items() if index not in ends}
    return ends


def _fair_rates(ways: Mapping[int, Mapping[Channel, float]]) -> dict[int, float]:
    """Bytes per second of each transfer: the scarcest channel is shared out first, then the next."""
    free = {channel: bandwidth for way in ways.values() for channel, bandwidth in way.items()}
    waiting, rates = dict(ways), {}
    while waiting:
        users = Counter(channel for way in waiting.values() for channel in way)
        rate = min(free[channel] / count for channel, count in users.items())
        scarce = {channel for channel, count in users.items() if free[channel] / count <= rate * (1 + 1e-12)}
        for index in [index for index, way in waiting.items() if not scarce.isdisjoint(way)]:
            rates[index] = rate
            for channel in waiting.pop(index):
                free[channel] = max(free[channel] - rate, 0.0)
    return rates
