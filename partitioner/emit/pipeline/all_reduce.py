"""Sum a gradient over replicas: every element is summed in one place, in one order, and copied to all.

So all replicas get the same bits. It is made of plain ops, whose results TensorFlow's executor sends from device to
device when they are there: a step that fails leaves nothing behind that the next one would wait for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import tensorflow as tf

from partitioner.ir.devices import equal_hosts, share_memory

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

    Where several processes have several replicas each, those of a process sum first, and what they sum goes to their
    peers in the other processes: so the network carries each element once for a process, not once for a device.
    Replicas that share a device sum on it before that.

    Args:
        values: The tensor of each replica.
        devices: The device of each.
        shape: Its shape.
        turn: Number of the tensor: replicas take turns at summing whole ones.
    """
    if len(values) == 1:
        return list(values)
    if len(set(devices)) < len(devices):
        sums = _sums_of_devices(values, devices)
        made = dict(zip(sums, all_reduce(list(sums.values()), list(sums), shape=shape, turn=turn), strict=True))
        return [made[device] for device in devices]
    hosts = equal_hosts(devices)
    names = [[devices[position] for position in host] for host in hosts]
    is_small = math.prod(shape) * values[0].dtype.size < _LEAST_CUT_BYTES
    is_whole = is_small or all(map(share_memory, names))
    pieces = [
        _whole([values[position] for position in host], own, shape=shape, turn=turn)
        if is_whole
        else _in_pieces([values[position] for position in host], own, num_elements=math.prod(shape))
        for host, own in zip(hosts, names, strict=True)
    ]
    found = list(values)
    for host, own, sums in zip(hosts, names, _over_hosts(pieces, turn=turn), strict=True):
        for position, device in zip(host, own, strict=True):
            with tf.device(device):
                found[position] = (
                    sums[0].value if is_whole else tf.reshape(tf.concat([piece.value for piece in sums], axis=0), shape)
                )
    return found


def _sums_of_devices(values: Sequence[Any], devices: Sequence[str]) -> dict[str, Any]:
    """By device, the sum of what its replicas have."""
    found: dict[str, list[Any]] = {}
    for value, device in zip(values, devices, strict=True):
        found.setdefault(device, []).append(value)
    sums = {}
    for device, own in found.items():
        with tf.device(device):
            sums[device] = tf.add_n(own) if len(own) > 1 else own[0]
    return sums


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a tensor, or all of it, and the device that it is on."""

    value: Any
    shape: Sequence[int]
    device: str


def _whole(values: Sequence[Any], devices: Sequence[str], *, shape: Sequence[int], turn: int) -> list[_Piece]:
    device = devices[turn % len(devices)]
    with tf.device(device):
        return [_Piece(tf.add_n(list(values)), shape, device)]


def _in_pieces(values: Sequence[Any], devices: Sequence[str], *, num_elements: int) -> list[_Piece]:
    """The sums of pieces, each on another device."""
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
            sums.append(_Piece(tf.add_n(pieces), [end - start], summing))
    return sums


def _over_hosts(pieces: Sequence[Sequence[_Piece]], *, turn: int) -> list[list[_Piece]]:
    """For each process, the sums of what all have of each piece, on the device that had its own."""
    if len(pieces) == 1:
        return [list(pieces[0])]
    found: list[list[_Piece]] = [[] for _ in pieces]
    for number, peers in enumerate(zip(*pieces, strict=True)):
        devices = [peer.device for peer in peers]
        sums = all_reduce([peer.value for peer in peers], devices, shape=peers[0].shape, turn=turn + number)
        for host, value, peer in zip(found, sums, peers, strict=True):
            with tf.device(peer.device):  # received once, whoever reads it in this process
                host.append(replace(peer, value=tf.identity(value)))
    return found


def all_gather(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """The rows of a tensor of all replicas, in the order of these, for each of them."""
    if len(values) == 1:
        return list(values)
    if share_memory(devices):
        with tf.device(devices[0]):
            return [tf.concat(values, axis=0)] * len(values)
    found = {}
    for device in dict.fromkeys(devices):
        with tf.device(device):
            found[device] = tf.concat(values, axis=0)
    return [found[device] for device in devices]
