"""Sum a gradient over replicas: every element is summed once, in the order of the replicas, and copied to all.

So all replicas get the same bits. It is made of plain ops, whose results TensorFlow's executor sends from device to
device when they are there: a step that fails leaves nothing behind that the next one would wait for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from partitioner.ir.devices import share_memory

# Below this, what TensorFlow adds to each tensor it sends (some 20 us) takes longer than the bytes do over PCIe, so
# that two large messages are faster than several small ones.
_LEAST_CUT_BYTES = 256 * 1024
# Slices that begin at such an element need no copy: TensorFlow aligns buffers to 64 bytes.
_ALIGNED = 64


def all_reduce(values: Sequence[Any], devices: Sequence[str], *, shape: Sequence[int], turn: int) -> list[Any]:
    """The sum of a tensor of all replicas, for each of them.

    A large tensor is cut into as many pieces as there are replicas. Each replica sums a piece, and all get all sums: a
    reduce-scatter and an all-gather, in which a device sends 2 (n - 1) / n of the bytes, the least there can be
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). A small one is
    summed in one place, and so is any where replicas share memory: there a copy costs nothing, and putting pieces
    together would.

    Args:
        values: The tensor of each replica.
        devices: The device of each.
        shape: Its shape.
        turn: Number of the tensor: replicas take turns at summing whole ones.
    """
    count = len(values)
    if count == 1:
        return list(values)
    num_elements = math.prod(shape)
    if share_memory(devices) or num_elements * values[0].dtype.size < _LEAST_CUT_BYTES:
        with tf.device(devices[turn % count]):
            return [tf.add_n(list(values))] * count
    return _in_pieces(values, devices, shape=shape, num_elements=num_elements)


def _in_pieces(values: Sequence[Any], devices: Sequence[str], *, shape: Sequence[int], num_elements: int) -> list[Any]:
    count = len(values)
    borders = [index * num_elements // count // _ALIGNED * _ALIGNED for index in range(count)] + [num_elements]
    flat = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(device):
            flat.append(tf.reshape(value, [num_elements]))
    sums = []
    for (start, end), summing in zip(pairwise(borders), devices, strict=True):
        pieces = []
        for value, device in zip(flat, devices, strict=True):
            with tf.device(device):
                pieces.append(value[start:end])
        with tf.device(summing):
            sums.append(tf.add_n(pieces))
    found = []
    for device in devices:
        with tf.device(device):
            found.append(tf.reshape(tf.concat(sums, axis=0), shape))
    return found


def all_gather(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """The rows of a tensor of all replicas, in the order of these, for each of them."""
    if len(values) == 1:
        return list(values)
    if share_memory(devices):
        with tf.device(devices[0]):
            return [tf.concat(values, axis=0)] * len(values)
    found = []
    for device in devices:
        with tf.device(device):
            found.append(tf.concat(values, axis=0))
    return found
