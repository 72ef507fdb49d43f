"""Every replica gets the sum of all, the same bits, with no more sent than there must be."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from partitioner.emit import all_reduce as module
from partitioner.emit.all_reduce import all_gather, all_reduce

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{index + 1}" for index in range(4)]


@pytest.fixture
def far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the devices shared no memory."""
    monkeypatch.setattr(module, "share_memory", lambda devices: False)


def values_of(count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.standard_normal(shape, np.float32) for _ in range(count)]


def reduced(arrays: list[np.ndarray], *, turn: int = 0) -> tuple[list[np.ndarray], Any]:
    """The sums, and the graph that makes them."""
    devices = DEVICES[: len(arrays)]

    def run(*values: Any) -> list[Any]:
        own = []
        for value, device in zip(values, devices, strict=True):
            with tf.device(device):
                own.append(tf.identity(value, name="own"))
        sums = all_reduce(own, devices, shape=arrays[0].shape, turn=turn)
        found = []
        for value, device in zip(sums, devices, strict=True):
            with tf.device(device):
                found.append(tf.identity(value))
        return found

    function = tf.function(run).get_concrete_function(*map(tf.constant, arrays))
    return [value.numpy() for value in function(*map(tf.constant, arrays))], function.graph


def sent_bytes(graph: Any) -> dict[str, int]:
    """What each device sends to others: a tensor once to each device that reads it."""
    sent = {
        (tensor.name, op.device): (tensor.op.device, tensor.shape.num_elements() * tensor.dtype.size)
        for op in graph.get_operations()
        for tensor in op.inputs
        if op.device and tensor.op.device and op.device != tensor.op.device
    }
    found: dict[str, int] = {}
    for device, size in sent.values():
        found[device] = found.get(device, 0) + size
    return found


@pytest.mark.usefixtures("far_apart")
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_large_tensor_is_summed_in_the_order_of_replicas_and_sent_least(count: int) -> None:
    shape = (400, 331)
    arrays = values_of(count, shape)
    sums, graph = reduced(arrays)
    expected = reduce(np.add, arrays)
    for found in sums:
        assert found.tobytes() == expected.tobytes()
    least = 2 * (count - 1) / count * expected.nbytes
    sent = sent_bytes(graph)
    assert set(sent) == set(DEVICES[:count])
    for size in sent.values():
        assert size == pytest.approx(least, rel=0.01)


@pytest.mark.usefixtures("far_apart")
@pytest.mark.parametrize("shape", [(), (1,), (63,), (5, 7)])
def test_a_small_tensor_is_summed_by_one(shape: tuple[int, ...]) -> None:
    arrays = values_of(3, shape)
    for turn in range(4):
        sums, graph = reduced(arrays, turn=turn)
        assert {found.tobytes() for found in sums} == {reduce(np.add, arrays).tobytes()}
        (summing,) = [op for op in graph.get_operations() if op.type == "AddN"]
        assert summing.device == DEVICES[turn % 3]


def test_devices_that_share_memory_make_no_copies() -> None:
    _, graph = reduced(values_of(2, (400, 331)))
    types = [op.type for op in graph.get_operations()]
    assert types.count("AddN") == 1
    assert "ConcatV2" not in types


@pytest.mark.usefixtures("far_apart")
def test_pieces_need_no_multiple_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_CUT_BYTES", 0)
    for size in (1, 3, 64, 127, 129, 1000):
        arrays = values_of(3, (size,))
        sums, _ = reduced(arrays)
        assert {found.tobytes() for found in sums} == {reduce(np.add, arrays).tobytes()}


@pytest.mark.parametrize("shared", [False, True])
def test_rows_come_in_the_order_of_replicas(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "share_memory", lambda devices: shared)
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (2, 1, 3)]
    found = all_gather([tf.constant(array) for array in arrays], DEVICES[:3])
    for rows in found:
        np.testing.assert_array_equal(rows, np.concatenate(arrays))


def test_one_replica_keeps_what_it_has() -> None:
    value = tf.constant([1.0])
    assert all_reduce([value], DEVICES[:1], shape=(1,), turn=5) == [value]
    assert all_gather([value], DEVICES[:1]) == [value]
