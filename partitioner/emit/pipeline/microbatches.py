"""Cut a batch into microbatches, on the host, whatever its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

SCOPE = "microbatches"
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


def cut_batch(
    arguments: Sequence[Any], count: int, adds_up: bool, dtype: Any, rows_each: int = 0
) -> tuple[list[list[Any]], list[Any], list[Any]]:
    """Cut a batch into microbatches of nearly equal size; the first ones have a further row.

    A microbatch without rows (in a batch of fewer rows than microbatches) gets a row of another microbatch with weight
    0: an average over no rows is not a number.

    With `rows_each`, a smaller batch fills microbatches of that size one after the other; those without rows get the
    rows of the first with weight 0. So whatever its size, there are at most two sizes, for each of which XLA compiles.

    Args:
        arguments: Tensors of the batch, rows first; scalars go to every microbatch.
        count: Number of microbatches.
        adds_up: Whether the loss is a sum over rows: then the weight of a microbatch with rows is 1, else its share.
        dtype: Of the weights.
        rows_each: Rows of a microbatch that is full; 0 for microbatches of nearly equal size.

    Returns:
        By microbatch: its arguments, its weight (scalar) and its number of rows (int32 scalar).
    """
    with tf.device(HOST), tf.name_scope(SCOPE):
        rows: Any = tf.shape(next(value for value in arguments if value.shape.rank))[0]
        numbers = tf.range(count)
        if rows_each:
            each = tf.maximum(rows_each, (rows + count - 1) // count)
            sizes = tf.clip_by_value(rows - numbers * each, 0, each)
            starts = tf.where(sizes > 0, numbers * each, 0)
            least = tf.minimum(each, rows)
        else:
            sizes = rows // count + tf.cast(numbers < rows % count, tf.int32)
            starts = tf.minimum(numbers * (rows // count) + tf.minimum(numbers, rows % count), rows - 1)
            least = 1
        shares = tf.cast(sizes, tf.float32) / tf.cast(rows, tf.float32)
        weights = tf.cast(sizes > 0 if adds_up else shares, dtype)
        ends = starts + tf.where(sizes > 0, sizes, least)
        parts = [
            [value[start:end] if value.shape.rank else value for value in arguments]
            for start, end in zip(tf.unstack(starts, count), tf.unstack(ends, count), strict=True)
        ]
        return parts, tf.unstack(weights, count), tf.unstack(sizes, count)
