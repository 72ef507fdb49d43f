"""Seconds of a message: a latency for starting it and a bandwidth for its bytes."""

from __future__ import annotations

from cost_models.hardware import Link


def transfer_seconds(size_bytes: int, link: Link) -> float:
    """Seconds to bring `size_bytes` over an idle link: alpha + bytes / beta.

    Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20(3),
    1994. A tensor of no bytes is sent all the same and takes the latency.

    Raises:
        ValueError: The size is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"cannot send {size_bytes} bytes")
    return link.latency_seconds + size_bytes / link.bandwidth_bytes_per_second
