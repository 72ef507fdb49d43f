"""Which variables have values: a deferred one takes no memory before it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from partitioner.deferred_variables import handles_only


def with_values(variables: Iterable[Any]) -> list[str]:
    """Paths of those of Keras' variables that have a value."""
    variables = list(variables)
    with handles_only():
        handles = [variable.value.handle for variable in variables]
    made = [bool(tf.raw_ops.VarIsInitializedOp(resource=handle)) for handle in handles]
    return [variable.path for variable, is_made in zip(variables, made, strict=True) if is_made]
