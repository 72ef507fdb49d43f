"""Trace conditional updates of variables without a branch, so that each variable's update is an op of its own.

Keras puts a whole update into a single tf.cond for loss scaling, gradient accumulation and averaged weights. That op
takes the handle of every variable and slot, but an op runs on one device only. Here both branches are traced in line
and each write keeps the old value where its branch is not taken: the same numbers, at the price of computing both
branches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# The real classes of variables behind `tf.Variable` have no public names.
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

_patching = threading.RLock()
_WRITES = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")


@contextmanager
def predicated_writes() -> Iterator[None]:
    """While this lasts, every `keras.ops.cond` of this process runs both branches and selects."""
    owner = tf.__internal__.smart_cond
    taken: list[Any] = []

    def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None) -> Any:
        pred = tf.convert_to_tensor(pred)
        if tf.get_static_value(pred) is not None:
            return smart_cond(pred, true_fn, false_fn, name)
        results = []
        for condition, branch in ((pred, true_fn), (tf.logical_not(pred), false_fn)):
            taken.append(tf.logical_and(taken[-1], condition) if taken else condition)
            try:
                results.append(branch())
            finally:
                taken.pop()
        return tf.nest.map_structure(lambda a, b: None if a is None else tf.where(pred, a, b), *results)

    def guarded(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def run(variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if not taken:
                return write(variable, value, *args, **kwargs)
            return write(variable, _kept(name, variable, value, taken[-1]), *args, **kwargs)

        return run

    with _patching:
        # Each class has writes of its own, and neither's call the other's.
        originals = [
            (kind, name, vars(kind)[name])
            for kind in (ResourceVariable, BaseResourceVariable)
            for name in _WRITES
            if name in vars(kind)
        ]
        smart_cond, owner.smart_cond = owner.smart_cond, cond
        for kind, name, write in originals:
            setattr(kind, name, guarded(name, write))
        try:
            yield
        finally:
            owner.smart_cond = smart_cond
            for kind, name, write in originals:
                setattr(kind, name, write)


def _kept(write: str, variable: Any, value: Any, condition: Any) -> Any:
    """The value to write so that nothing changes unless `condition` holds.

    A zero is a scalar: of the shape of a gradient, TensorFlow would keep it as a constant for each write.
    """
    if isinstance(value, tf.IndexedSlices):
        kept = tf.gather(variable, value.indices) if write == "scatter_update" else tf.zeros([], value.dtype)
        return tf.IndexedSlices(tf.where(condition, value.values, kept), value.indices, value.dense_shape)
    value = tf.convert_to_tensor(value, variable.dtype)
    return tf.where(condition, value, variable.read_value() if write == "assign" else tf.zeros([], value.dtype))
