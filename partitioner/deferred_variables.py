"""Variables of Keras without values: planning needs their handles alone, and the values may exceed this machine.

A deferred variable makes its value when something first needs it, so code need not know that it is deferred.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import in_stateless_scope

# TensorFlow exports no variable without a value.
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

_patching = threading.RLock()
_numbers = itertools.count(1)
_handles_only: ContextVar[bool] = ContextVar("handles_only", default=False)


class DeferredVariable(UninitializedVariable):
    """A variable whose value is made by `initial` when it is first read or when a function takes its handle.

    Its handle costs no memory. Keras' symbolic calls and tracing under `handles_only` take the handle and no value.

    Args:
        initial: Makes the value.
        options: As of a `tf.Variable`, with its shape.
    """

    _initial: Callable[[], Any] | None = None

    def __init__(self, initial: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._initial = initial
        self.number = next(_numbers)

    @property
    def _handle(self) -> Any:
        if not (_handles_only.get() or in_stateless_scope()):
            self._make_value()
        return self._own_handle

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self._own_handle = handle

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if tf.executing_eagerly():
            self._make_value()
        return super()._read_variable_op(no_copy)

    def assign(self, *arguments: Any, **options: Any) -> Any:
        """As of every variable; a value that is overwritten at once is not made."""
        if self._initial is None or not tf.executing_eagerly():
            return super().assign(*arguments, **options)
        with handles_only():
            written = super().assign(*arguments, **options)
        self._initial = None
        return written

    def _make_value(self) -> None:
        if self._initial is None:
            return
        initial, self._initial = self._initial, None
        try:
            with tf.init_scope(), tf.__internal__.eager_context.eager_mode(), tf.device(self._own_handle.device):
                value = tf.cast(initial(), str(self.dtype.name))
                tf.raw_ops.AssignVariableOp(resource=self._own_handle, value=value)
        except BaseException:
            self._initial = initial
            raise


def is_deferred(held: Any) -> bool:
    """Whether a TensorFlow variable has no value yet."""
    return isinstance(held, DeferredVariable) and held._initial is not None


def creation_number(held: Any) -> int:
    """A number that says which of two deferred variables was created first; 0 for others."""
    return held.number if is_deferred(held) else 0


def initial_value(held: Any) -> Any:
    """What to make a variable like this one from: the initializer of a deferred one, else the variable itself."""
    return held._initial if is_deferred(held) else held


def valueless_handle(shape: Any, dtype: Any) -> Any:
    """A handle that says the shape and dtype of a variable, and holds no value."""
    return UninitializedVariable(shape=shape, dtype=dtype, trainable=False).handle


@contextmanager
def deferred_values() -> Iterator[None]:
    """Let variables that Keras makes from an initializer be deferred; those under a `tf.distribute` strategy are not.

    Variables made from a value have it.
    """
    kind: Any = keras.Variable
    with _patching:
        original = kind._initialize_with_initializer

        def defer(variable: Any, initializer: Callable[..., Any]) -> None:
            if tf.distribute.has_strategy():
                original(variable, initializer)
                return
            variable._initialize(
                DeferredVariable(
                    partial(initializer, variable._shape, dtype=variable._dtype),
                    shape=variable._shape,
                    dtype=variable._dtype,
                    trainable=variable.trainable,
                    name=variable.name,
                    aggregation=variable._map_aggregation(variable.aggregation),
                    synchronization=variable._map_synchronization(variable.synchronization),
                )
            )

        kind._initialize_with_initializer = defer
        try:
            yield
        finally:
            kind._initialize_with_initializer = original


@contextmanager
def handles_only() -> Iterator[None]:
    """Trace functions that are never called: in the context, taking a handle makes no value; reading eagerly does."""
    token = _handles_only.set(True)
    try:
        yield
    finally:
        _handles_only.reset(token)
