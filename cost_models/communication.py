"""Seconds of messages on an idle link, and over several links in series."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.hardware import Link, StagedLink


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
    """Several links in series as a single link; each stores the whole message before it sends it on.

    Where devices cannot reach each other, a tensor goes to the host's memory and from there to the other device:
    latencies add up, and so do the seconds per byte.

    Returns:
        The link itself if it is the only link, else a `StagedLink`.

    Raises:
        ValueError: There is no link.
    """
    if not links:
        raise ValueError("a series needs at least one link")
    if len(links) == 1:
        return links[0]
    return StagedLink(
        hops=tuple(links),
        name="+".join(link.name for link in links),
        latency_seconds=sum(link.latency_seconds for link in links),
        bandwidth_bytes_per_second=1 / sum(1 / link.bandwidth_bytes_per_second for link in links),
        source="; ".join(dict.fromkeys(link.source for link in links)),
        date=max(link.date for link in links),
        latency_source="; ".join(dict.fromkeys(link.latency_source or link.source for link in links)),
        latency_date=max(link.latency_date or link.date for link in links),
    )
