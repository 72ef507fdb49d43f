"""Conditional updates traced in line: the same values as with a branch, whichever way it goes, and no branch op."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from partitioner.capture.trace.predicate import predicated_writes
from partitioner.emit.graph.mirrored_variable import mirrored


def traced(update: Any) -> Any:
    @tf.function(autograph=False)
    def run(flag: tf.Tensor) -> Any:
        with predicated_writes():
            return update(flag)

    return run


def quietly(write: Any) -> Any:
    """A branch that returns nothing, as Keras' own do."""

    def branch() -> None:
        write()

    return branch


def branches(function: Any, *arguments: Any) -> list[str]:
    operations = function.get_concrete_function(*arguments).graph.get_operations()
    return [op.type for op in operations if op.type in ("If", "StatelessIf")]


@pytest.mark.parametrize(("flag", "expected"), [(True, [5.0, 3.0, 0.0]), (False, [1.0, 2.0, 3.0])])
def test_writes_happen_only_where_their_branch_is_taken(flag: bool, expected: list[float]) -> None:
    a, b, c = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)

    def take() -> None:
        a.assign(5.0)
        b.assign_add(1.0)
        c.assign_sub(3.0)

    run = traced(lambda pred: keras.ops.cond(pred, take, lambda: None))
    run(tf.constant(flag))
    assert [float(v) for v in (a, b, c)] == expected
    assert branches(run, tf.constant(flag)) == []


@pytest.mark.parametrize(("flag", "expected"), [(True, 10.0), (False, -1.0)])
def test_both_branches_may_write_one_variable(flag: bool, expected: float) -> None:
    v = tf.Variable(1.0)
    ten_times, minus = quietly(lambda: v.assign(v * 10)), quietly(lambda: v.assign(-v))
    run = traced(lambda p: keras.ops.cond(p, ten_times, minus))
    run(tf.constant(flag))
    assert float(v) == expected


@pytest.mark.parametrize(("value", "expected"), [(5.0, 111.0), (1.0, 11.0), (-1.0, 0.0)])
def test_a_branch_in_a_branch_needs_both_conditions(value: float, expected: float) -> None:
    v = tf.Variable(0.0)

    def positive(x: tf.Tensor) -> None:
        v.assign_add(1.0)
        keras.ops.cond(x > 3, quietly(lambda: v.assign_add(100.0)), lambda: None)
        v.assign_add(10.0)

    run = traced(lambda x: keras.ops.cond(x > 0, lambda: positive(x), lambda: None))
    run(tf.constant(value))
    assert float(v) == expected


def test_what_the_other_branch_computes_does_not_leak() -> None:
    v = tf.Variable(2.0)
    run = traced(lambda x: keras.ops.cond(x > 0, quietly(lambda: v.assign(1 / x)), lambda: None))
    run(tf.constant(0.0))  # 1 / 0 is computed, and dropped
    assert float(v) == 2.0


def test_values_are_selected() -> None:
    v = tf.Variable(0.0)
    run = traced(lambda p: keras.ops.cond(p, lambda: (v + 1, v + 2), lambda: (v - 1, v - 2)))
    assert [float(one) for one in run(tf.constant(True))] == [1.0, 2.0]
    assert [float(one) for one in run(tf.constant(False))] == [-1.0, -2.0]


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("write", ["scatter_add", "scatter_sub", "scatter_update"])
def test_sparse_writes(write: str, flag: bool) -> None:
    v = tf.Variable([[1.0], [2.0], [3.0]])
    rows = tf.IndexedSlices(tf.constant([[10.0], [20.0]]), tf.constant([2, 0]), tf.constant([3, 1]))
    run = traced(lambda p: keras.ops.cond(p, quietly(lambda: getattr(v, write)(rows)), lambda: None))
    run(tf.constant(flag))
    taken = {"scatter_add": [21, 2, 13], "scatter_sub": [-19, 2, -7], "scatter_update": [20, 2, 10]}[write]
    np.testing.assert_array_equal(v.numpy()[:, 0], taken if flag else [1, 2, 3])


@pytest.mark.parametrize("write", ["assign_add", "scatter_add"])
def test_zeros_of_the_shape_of_a_gradient_are_not_made(write: str) -> None:
    v = tf.Variable(tf.ones([5, 7]))
    value = tf.IndexedSlices(tf.ones([3, 7]), tf.constant([0, 1, 2])) if write == "scatter_add" else tf.ones([5, 7])
    run = traced(lambda p: keras.ops.cond(p, quietly(lambda: getattr(v, write)(value)), lambda: None))
    operations = run.get_concrete_function(tf.constant(True)).graph.get_operations()
    zeros = [op for op in operations if op.type in ("Fill", "ZerosLike")]
    constants = [tf.make_ndarray(op.get_attr("value")) for op in operations if op.type == "Const"]
    assert not zeros
    assert all(constant.size == 1 for constant in constants if constant.dtype == np.float32 and not constant.any())


def test_a_condition_known_when_tracing_keeps_one_branch() -> None:
    v = tf.Variable(0.0)

    def update(_: tf.Tensor) -> None:
        keras.ops.cond(tf.constant(True), quietly(lambda: v.assign_add(1.0)), lambda: pytest.fail("traced"))

    traced(update)(tf.constant(True))
    assert float(v) == 1.0


def test_writes_and_branches_are_as_before_afterwards() -> None:
    v = tf.Variable(0.0)
    classes = [kind for kind in type(v).__mro__ if "assign" in vars(kind)]
    before = [dict(vars(kind)) for kind in classes]
    with pytest.raises(RuntimeError), predicated_writes():
        raise RuntimeError
    assert [dict(vars(kind)) for kind in classes] == before
    assert branches(tf.function(lambda p: keras.ops.cond(p, lambda: v + 1, lambda: v)), tf.constant(True)) != []


@pytest.mark.parametrize("flag", [True, False])
def test_writes_of_every_class_of_variables_are_guarded(flag: bool) -> None:
    """Only writes of the first variable's class were: scales and slots beside a mirrored variable took every write."""
    plain, copies = tf.Variable(1.0), [tf.Variable(2.0), tf.Variable(2.0)]
    both = mirrored(copies)

    def branch() -> None:
        plain.assign_add(1.0)
        both.assign_sub(1.0)

    traced(lambda p: keras.ops.cond(p, branch, lambda: None))(tf.constant(flag))
    assert [float(one) for one in (plain, *copies)] == ([2.0, 1.0, 1.0] if flag else [1.0, 2.0, 2.0])
