"""Batches for verification: random batches by the specs, and structures of tensors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from partitioner.errors import UsageError
from partitioner.spelling import argument


def random_batches(specs: Any, batch_size: int, count: int, seed: int) -> list[Any]:
    """Batches for structures of TensorSpec: normal floats, integers 0 and 1 (valid class and token numbers), booleans.

    Strings are "0" and "1".

    Raises:
        UsageError: A dtype has no random values.
    """
    generator = np.random.default_rng(seed)

    def random_tensor(spec: Any) -> Any:
        if spec is None:
            return None
        shape = [batch_size if size is None else size for size in spec.shape]
        if spec.dtype.is_floating or spec.dtype.is_complex:
            return tf.cast(tf.constant(generator.standard_normal(shape)), spec.dtype)
        if spec.dtype.is_integer or spec.dtype.is_bool:
            return tf.cast(generator.integers(0, 2, shape), spec.dtype)
        if spec.dtype == tf.string:
            return tf.as_string(tf.constant(generator.integers(0, 2, shape)))
        raise UsageError(
            f"the model cannot be verified: no random values can be made for an input of dtype {spec.dtype.name}",
            help=f"leave out {argument('verify')}",
        )

    return [tf.nest.map_structure(random_tensor, specs) for _ in range(count)]


def permuted(batch: Any, order: np.ndarray) -> Any:
    """The batch with its rows in another order."""
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, order), batch)


def flat_arrays(values: Any) -> list[np.ndarray]:
    """Every tensor of a structure as a float64 array; sparse gradients are made dense."""
    arrays = []
    for value in tf.nest.flatten(values):
        if value is not None:
            arrays.append(np.asarray(tf.cast(value, tf.float64)))
    return arrays


def as_dense(gradient: Any, shape: Any) -> Any:
    """A gradient as a dense tensor: a sparse gradient (values, indices[, dense shape]) is summed up."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = (gradient.values, gradient.indices)
    if isinstance(gradient, tuple):
        values, indices = gradient[0], gradient[1]
        return tf.math.unsorted_segment_sum(values, indices, shape[0])
    return gradient
