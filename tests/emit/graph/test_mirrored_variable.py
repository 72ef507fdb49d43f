"""Whoever assigns to a mirrored variable reaches the copies of all replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from partitioner.emit.graph.mirrored_variable import MirroredVariable, each_copy, first_replica_only, mirrored

START = np.arange(6, dtype=np.float32).reshape(3, 2)


def made() -> MirroredVariable:
    copies = []
    for index in range(3):
        with tf.device(f"CPU:{index + 1}"):
            copies.append(tf.Variable(START, name="made"))
    return mirrored(copies)


def slices() -> Any:
    return tf.IndexedSlices(tf.constant([[2.0, 3.0], [4.0, 5.0]]), tf.constant([2, 0]))


WRITES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "assign": (lambda v: v.assign(START + 1), START + 1),
    "assign_add": (lambda v: v.assign_add(START), 2 * START),
    "assign_sub": (lambda v: v.assign_sub(START), 0 * START),
    "from itself": (lambda v: v.assign(2 * v), 2 * START),
    "scatter_add": (lambda v: v.scatter_add(slices()), START + np.float32([[4, 5], [0, 0], [2, 3]])),
    "scatter_sub": (lambda v: v.scatter_sub(slices()), START - np.float32([[4, 5], [0, 0], [2, 3]])),
    "scatter_update": (lambda v: v.scatter_update(slices()), np.float32([[4, 5], [2, 3], [2, 3]])),
    "scatter_nd_add": (lambda v: v.scatter_nd_add([[1]], [[1.0, 1.0]]), START + np.float32([[0, 0], [1, 1], [0, 0]])),
}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(("write", "expected"), WRITES.values(), ids=WRITES)
def test_every_write_reaches_every_copy(write: Callable[[Any], Any], expected: np.ndarray, in_graph: bool) -> None:
    variable = made()
    (tf.function(write) if in_graph else write)(variable)
    for index, copy in enumerate(each_copy(variable)):
        np.testing.assert_array_equal(copy.numpy(), expected)
        assert copy.device.endswith(f"CPU:{index + 1}")


def test_it_is_the_variable_of_the_first_replica() -> None:
    variable = made()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    np.testing.assert_array_equal(tape.gradient(loss, variable), 2 * START)
    assert variable.device.endswith("CPU:1")
    assert variable.handle is variable.first.handle
    assert isinstance(variable, tf.Variable)


def test_what_does_not_fit_changes_no_copy() -> None:
    variable = made()
    with pytest.raises(ValueError, match="incompatible"):
        variable.assign(np.zeros((2, 2), np.float32))
    assert all(np.array_equal(copy, START) for copy in each_copy(variable))


def test_a_step_of_one_replica_can_be_traced() -> None:
    variable = made()
    with first_replica_only():
        graph = tf.function(lambda: variable.assign_add(START)).get_concrete_function().graph
    assert [op.type for op in graph.get_operations()].count("AssignAddVariableOp") == 1
    assert len(graph.captures) == 1
    variable.assign(START + 1)
    assert all(np.array_equal(copy, START + 1) for copy in each_copy(variable))


def test_one_copy_alone_needs_no_mirror() -> None:
    variable = tf.Variable(START)
    assert mirrored([variable]) is variable
    assert each_copy(variable) == (variable,)
