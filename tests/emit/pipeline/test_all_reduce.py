"""Every replica gets the sum of all, the same bits, with no more sent than there must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from partitioner.emit.graph.rewriting import as_given
from partitioner.emit.pipeline import all_reduce as module
from partitioner.emit.pipeline.all_reduce import all_gather, all_reduce

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{index + 1}" for index in range(4)]


@pytest.fixture(autouse=True)
def rewrites() -> Iterator[None]:
    """None, as in steps of replicas; TensorFlow would merge sums, in another order."""
    with as_given():
        yield


@pytest.fixture
def far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the devices shared no memory."""
    monkeypatch.setattr(module, "share_memory", lambda devices: False)


def values_of(count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.standard_normal(shape, np.float32) for _ in range(count)]


def graph_of(arrays: list[np.ndarray], devices: list[str], *, turn: int = 0) -> Any:
    """The function that makes the sums."""

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

    return tf.function(run).get_concrete_function(*map(tf.constant, arrays))


def reduced(arrays: list[np.ndarray], *, turn: int = 0) -> tuple[list[np.ndarray], Any]:
    """The sums, and the graph that makes them."""
    function = graph_of(arrays, DEVICES[: len(arrays)], turn=turn)
    return [value.numpy() for value in function(*map(tf.constant, arrays))], function.graph


def sent_bytes(graph: Any, *, sender: Callable[[str], str] = str) -> dict[str, int]:
    """What each device, or what `sender` makes of it, sends to others: a tensor once to each device that reads it."""
    sent = {
        (tensor.name, op.device): (tensor.op.device, tensor.shape.num_elements() * tensor.dtype.size)
        for op in graph.get_operations()
        for tensor in op.inputs
        if op.device and tensor.op.device and sender(op.device) != sender(tensor.op.device)
    }
    found: dict[str, int] = {}
    for device, size in sent.values():
        found[sender(device)] = found.get(sender(device), 0) + size
    return found


@pytest.mark.usefixtures("far_apart")
@pytest.mark.parametrize("shape", [(3,), (300, 401)])
def test_replicas_that_share_a_device_sum_on_it_first(shape: tuple[int, ...]) -> None:
    arrays, devices = values_of(4, shape), [DEVICES[0], DEVICES[1], DEVICES[0], DEVICES[1]]
    function = graph_of(arrays, devices)
    found = [value.numpy() for value in function(*map(tf.constant, arrays))]
    assert len({value.tobytes() for value in found}) == 1
    np.testing.assert_allclose(found[0], sum(arrays), rtol=1e-5, atol=1e-6)
    # Two devices exchange as much as two replicas would: a half of their own, and a half of the sum.
    assert sum(sent_bytes(function.graph).values()) <= 2 * arrays[0].nbytes * 1.01


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


@pytest.mark.parametrize(("kind", "shape"), [("GPU", (400, 331)), ("GPU", (5, 7)), ("CPU", (400, 331)), ("CPU", ())])
def test_a_process_sends_each_element_once_however_many_replicas_it_has(kind: str, shape: tuple[int, ...]) -> None:
    hosts, per_host = 3, 4
    names = [f"/job:worker/replica:0/task:{host}/device:{kind}:{index}" for host in range(hosts) for index in range(4)]
    arrays = values_of(hosts * per_host, shape)
    size = arrays[0].nbytes
    graph = graph_of(arrays, names).graph
    sent = sent_bytes(graph, sender=lambda device: device.rpartition("/")[0])
    assert sum(sent.values()) == 2 * (hosts - 1) * size
    if kind == "GPU" and size > module._LEAST_CUT_BYTES:  # in a host's pieces, each of which its peers cut again or not
        within = sent_bytes(graph)
        assert max(within.values()) <= 2 * size * (per_host - 1 + hosts - 1) / per_host * 1.01


@pytest.mark.usefixtures("far_apart")
@pytest.mark.parametrize("shape", [(), (7,), (400, 331)])
def test_processes_sum_first_what_is_in_them(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {4: [[0, 1], [2, 3]]}
    monkeypatch.setattr(module, "equal_hosts", lambda names: hosts.get(len(names), [list(range(len(names)))]))
    arrays = values_of(4, shape)
    sums, _ = reduced(arrays)
    assert {found.tobytes() for found in sums} == {((arrays[0] + arrays[1]) + (arrays[2] + arrays[3])).tobytes()}


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


def test_tensors_that_are_sent_together_have_the_bits_that_they_have_alone(far_apart: None) -> None:
    shapes = [(3, 5), (), (70_001,), (2, 2)]
    arrays = [values_of(3, shape) for shape in shapes]
    devices = DEVICES[:3]

    def run(*flat: Any) -> list[Any]:
        values = [list(flat[3 * index :][:3]) for index in range(len(shapes))]
        together = module.all_reduce_together(values, devices, shapes=shapes, turn=1)
        alone = [all_reduce(own, devices, shape=shape, turn=1) for own, shape in zip(values, shapes, strict=True)]
        return [together, alone]

    together, alone = tf.function(run)(*(tf.constant(array) for own in arrays for array in own))
    for one, other, own in zip(together, alone, arrays, strict=True):
        assert [value.numpy().tobytes() for value in one] == [value.numpy().tobytes() for value in other]
        np.testing.assert_allclose(one[0], reduce(np.add, own), rtol=1e-6)


def test_gradients_of_a_stage_are_sent_in_few_messages(far_apart: None) -> None:
    """Bug: every gradient was sent alone: of a ResNet50 on eight devices, 7,112 sends a step."""
    shapes = [(8, 8)] * 20
    devices = DEVICES[:2]

    def run(*flat: Any) -> Any:
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        return module.all_reduce_together(pairs, devices, shapes=shapes, turn=0)

    function = tf.function(run)
    graph = function.get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes for _ in devices)).graph
    crossing = {
        (tensor.name, op.device)
        for op in graph.get_operations()
        for tensor in op.inputs
        if op.device and tensor.op.device and op.device != tensor.op.device
    }
    assert len(crossing) == 2  # to the device that sums, and back
