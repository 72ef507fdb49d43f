"""Sum a gradient over replicas: every element is summed on a single device, in a fixed order, and copied to all.

So all replicas get the same bits. It consists of plain ops, whose results TensorFlow's executor sends from device to
device: after a failed step, the next step has nothing left to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import tensorflow as tf

from partitioner.ir.devices import equal_hosts, share_memory

# Below this, TensorFlow's overhead per sent tensor (some 20 us) takes longer than the bytes do over PCIe, so that two
# large messages are faster than several small messages.
_LEAST_CUT_BYTES = 256 * 1024
# Slices that begin at a multiple of this need no copy: TensorFlow aligns buffers to 64 bytes.
_ALIGNED = 64


def all_reduce(values: Sequence[Any], devices: Sequence[str], *, shape: Sequence[int], turn: int) -> list[Any]:
    """The sum of a tensor of all replicas, for each of them.

    A large tensor is cut into as many pieces as there are replicas. Each replica sums a piece, and all get all sums: a
    reduce-scatter and an all-gather, in which a device sends 2 (n - 1) / n of the bytes, which is the minimum
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). A small tensor
    is summed on a single device, and so is any tensor where replicas share memory: a copy costs nothing there, but
    joining pieces would.

    Where several processes have several replicas each, the replicas of a process sum first, and their sum goes to their
    peers in the other processes: so the network carries each element once per process, not once per device. Replicas
    that share a device sum on it before that.

    Args:
        values: The tensor of each replica.
        devices: The device of each replica.
        shape: Shape of the tensor.
        turn: Number of the tensor: replicas take turns at summing whole tensors.
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
    results = list(values)
    for host, own, sums in zip(hosts, names, _over_hosts(pieces, turn=turn), strict=True):
        for position, device in zip(host, own, strict=True):
            with tf.device(device):
                results[position] = (
                    sums[0].value if is_whole else tf.reshape(tf.concat([piece.value for piece in sums], axis=0), shape)
                )
    return results


def all_reduce_together(
    tensors: Sequence[Sequence[Any]], devices: Sequence[str], *, shapes: Sequence[Sequence[int]], turn: int
) -> list[list[Any]]:
    """The sums of several tensors, sent as one: by tensor, for each replica. Every element is summed as it is alone.

    Args:
        tensors: By tensor, the value of each replica; of one dtype.
        devices: The device of each replica.
        shapes: The shape of each tensor.
        turn: Number of the message.
    """
    if len(tensors) == 1:
        return [all_reduce(tensors[0], devices, shape=shapes[0], turn=turn)]
    sizes = [math.prod(shape) for shape in shapes]
    messages = []
    for values, device in zip(zip(*tensors, strict=True), devices, strict=True):
        with tf.device(device):
            messages.append(tf.concat([tf.reshape(value, [-1]) for value in values], axis=0))
    sums: list[list[Any]] = [[] for _ in tensors]
    for message, device in zip(all_reduce(messages, devices, shape=[sum(sizes)], turn=turn), devices, strict=True):
        with tf.device(device):
            for own, part, shape in zip(sums, tf.split(message, sizes), shapes, strict=True):
                own.append(tf.reshape(part, shape))
    return sums


def _sums_of_devices(values: Sequence[Any], devices: Sequence[str]) -> dict[str, Any]:
    """By device, the sum over the replicas on it."""
    by_device: dict[str, list[Any]] = {}
    for value, device in zip(values, devices, strict=True):
        by_device.setdefault(device, []).append(value)
    sums = {}
    for device, own in by_device.items():
        with tf.device(device):
            sums[device] = tf.add_n(own) if len(own) > 1 else own[0]
    return sums


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a tensor, or all of it, and its device."""

    value: Any
    shape: Sequence[int]
    device: str


def _whole(values: Sequence[Any], devices: Sequence[str], *, shape: Sequence[int], turn: int) -> list[_Piece]:
    device = devices[turn % len(devices)]
    with tf.device(device):
        return [_Piece(tf.add_n(list(values)), shape, device)]


def _in_pieces(values: Sequence[Any], devices: Sequence[str], *, num_elements: int) -> list[_Piece]:
    """The sums of pieces, each on a different device."""
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
    """For each process, the sum of each piece over all processes, on the device that had the process's piece."""
    if len(pieces) == 1:
        return [list(pieces[0])]
    by_host: list[list[_Piece]] = [[] for _ in pieces]
    for number, peers in enumerate(zip(*pieces, strict=True)):
        devices = [peer.device for peer in peers]
        sums = all_reduce([peer.value for peer in peers], devices, shape=peers[0].shape, turn=turn + number)
        for host, value, peer in zip(by_host, sums, peers, strict=True):
            with tf.device(peer.device):  # received once for all readers in this process
                host.append(replace(peer, value=tf.identity(value)))
    return by_host


def all_gather(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """The rows of a tensor of all replicas, in replica order, for each replica."""
    if len(values) == 1:
        return list(values)
    if share_memory(devices):
        with tf.device(devices[0]):
            return [tf.concat(values, axis=0)] * len(values)
    gathered = {}
    for device in dict.fromkeys(devices):
        with tf.device(device):
            gathered[device] = tf.concat(values, axis=0)
    return [gathered[device] for device in devices]
