"""A model from a function that builds it, its variables without values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from partitioner.deferred_variables import deferred_values
from partitioner.errors import ModelError, UsageError

BuildsModel = Callable[[], keras.Model]


def built(model: keras.Model | BuildsModel) -> keras.Model:
    """The model itself, or the model that a function builds.

    What it builds takes no memory: variables get their values where something first needs them.

    Raises:
        UsageError: It is neither a model nor a function that can be called without arguments.
        ModelError: The function returns something else.
    """
    if isinstance(model, keras.Model):
        return model
    if not callable(model) or isinstance(model, keras.Layer):
        raise UsageError(f"the model is a {_kind(model)}, expected a keras.Model or a function that returns one")
    name = getattr(model, "__name__", None) or _kind(model)
    _refuse_arguments(model, name)
    with tf.device("CPU:0"), deferred_values():
        made: Any = model()
    if isinstance(made, keras.Model):
        return made
    raise ModelError(
        f"{name}() returned {'None' if made is None else f'a {_kind(made)}'}, expected a keras.Model",
        help=f"did you forget `return model` at the end of {name}?" if made is None else "",
    )


def _refuse_arguments(build: BuildsModel, name: str) -> None:
    try:
        # keras.Model.__new__ takes anything, and inspect would report its signature for every subclass.
        signature = inspect.signature(build.__init__.__get__(object()) if inspect.isclass(build) else build)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be called without arguments: {error}",
            notes=[f"its signature: {name}{signature}"],
            help=f"give the arguments: lambda: {name}(...)",
        ) from error


def _kind(value: object) -> str:
    return type(value).__qualname__
