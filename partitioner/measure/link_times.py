"""Measure the latency and the bandwidth of the link between two devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

SIZES_BYTES = (4, 1 << 20, 1 << 24)
HOPS = 8
RUNS = 15
# Logical devices of the same host pass a pointer; a plan must not divide by 0.
MOST_BYTES_PER_SECOND = 1e13


def time_link(source: str, target: str) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second between two devices that are present.

    A tensor is sent to and fro, with an op on each side; the time of the same ops on a single device is subtracted. In
    the least-squares line through the medians for a few sizes, weighted by 1 / seconds, the intercept is the latency
    and the slope is the reciprocal of the bandwidth (Hockney 1994, as in `cost_models.communication`).
    """
    seconds = [_hop_seconds(source, target, size) for size in SIZES_BYTES]
    latency, per_byte = fit_line(SIZES_BYTES, seconds)
    return latency, min(1 / per_byte if per_byte > 0 else MOST_BYTES_PER_SECOND, MOST_BYTES_PER_SECOND)


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope, neither negative, with the least sum of squared relative errors."""
    weights = [1 / max(value, 1e-9) ** 2 for value in seconds]
    total = sum(weights)
    mean_size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_seconds = sum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    spread = sum(w * (x - mean_size) ** 2 for w, x in zip(weights, sizes, strict=True))
    common = sum(w * (x - mean_size) * (y - mean_seconds) for w, x, y in zip(weights, sizes, seconds, strict=True))
    slope = max(common / spread, 0.0) if spread else 0.0
    return max(mean_seconds - slope * mean_size, 0.0), slope


def _hop_seconds(source: str, target: str, size_bytes: int) -> float:
    with tf.device(source):
        value = tf.zeros([max(size_bytes // 4, 1)])
    travels, stays = (_bounce(source, end, value) for end in (target, source))
    return max(_median_seconds(travels, value) - _median_seconds(stays, value), 0.0) / (2 * HOPS)


def _bounce(source: str, target: str, value: Any) -> Any:
    def bounce(x: Any) -> Any:
        for _ in range(HOPS):
            for device in (target, source):
                with tf.device(device):
                    x = tf.sqrt(x)
        return x[0]

    return tf.function(bounce, autograph=False).get_concrete_function(tf.TensorSpec(value.shape, value.dtype))


def _median_seconds(function: Any, value: Any) -> float:
    function(value).numpy()
    durations = []
    for _ in range(RUNS):
        start = time.perf_counter()
        function(value).numpy()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)
