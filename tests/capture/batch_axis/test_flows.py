"""Where the rows of a tensor are: hand-computed for ops in which their order matters, and by the functions of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from flows import flow_of

from partitioner.capture.batch_axis.flow import Apart, Mixed, Total, Uniform

LENGTH, WIDTH = 7, 5


def rows(x: Any) -> Any:
    return tf.shape(x)[0]


def time_major(x: Any) -> Any:
    return tf.reshape(tf.transpose(x, [1, 0, 2]), [LENGTH * rows(x), WIDTH])


PLACES: dict[str, tuple[Callable[[Any], Any], Apart]] = {
    "rows major": (lambda x: tf.reshape(x, [-1, WIDTH]), Apart(0, minor=LENGTH)),
    "rows minor": (time_major, Apart(0, major=LENGTH)),
    "and back": (lambda x: tf.reshape(time_major(x), [LENGTH, -1, WIDTH]), Apart(1)),
    "between": (lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1]), Apart(0, major=LENGTH, minor=WIDTH)),
    "twice": (lambda x: tf.concat([x, x], 0), Apart(0, major=2)),
    "second of twice": (lambda x: tf.concat([x, x], 0)[rows(x) :], Apart(0)),
    "tiled": (lambda x: tf.tile(x[:, 0], [3, 2]), Apart(0, major=3)),
    "tiled by rows": (lambda x: tf.tile(tf.ones([2, WIDTH]), [rows(x), 1]), Apart(0, minor=2)),
    "diluted": (lambda x: tf.space_to_batch(x[:, :6], [3], [[0, 0]]), Apart(0, major=3)),
    "looked up": (lambda x: tf.gather(tf.eye(9), tf.cast(x, tf.int32), axis=1), Apart(1)),
    "stacked": (lambda x: tf.stack(tf.unstack(x, axis=1)), Apart(1)),
    "scanned": (lambda x: tf.scan(tf.add, tf.transpose(x, [1, 0, 2])), Apart(1)),
    "row by row": (lambda x: tf.map_fn(tf.reduce_sum, x), Apart(0)),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_the_rows_are(name: str) -> None:
    compute, expected = PLACES[name]
    assert flow_of(compute, (None, LENGTH, WIDTH)) == expected


@pytest.mark.parametrize(
    ("compute", "power"),
    [
        (tf.reduce_sum, 0),
        (tf.reduce_mean, -1),
        (lambda x: tf.reduce_mean(x, 0) - 2.0, -1),
        (lambda x: tf.matmul(x[:, 0], x[:, 1], transpose_a=True), 0),
        (lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32), -1),
        (lambda x: tf.reduce_sum(x / tf.cast(rows(x), tf.float32)), -1),
        (lambda x: 0.5 * tf.nn.l2_loss(x) / tf.cast(rows(x), tf.float32), -1),
    ],
)
def test_sums_and_means_over_rows(compute: Callable[[Any], Any], power: int) -> None:
    flow = flow_of(compute, (None, LENGTH, WIDTH))
    assert isinstance(flow, Total)
    assert flow.power == power


@pytest.mark.parametrize(
    ("compute", "op_type"),
    [
        (lambda x: x - tf.reduce_mean(x, 0), "Mean"),
        (lambda x: tf.sqrt(tf.reduce_sum(x)), "Sum"),
        (lambda x: tf.reduce_sum(x) + 1.0, "Sum"),
        (lambda x: tf.reverse(tf.nn.relu(x), [0]), "ReverseV2"),
        (lambda x: tf.reshape(x, [LENGTH, -1, WIDTH]), "Reshape"),
        (lambda x: tf.cumsum(tf.reshape(x, [-1, WIDTH])), "Cumsum"),
        (lambda x: tf.while_loop(lambda i, y: i < rows(x), lambda i, y: (i + 1, y + x), [0, x])[1], "While"),
        (lambda x: tf.function(lambda y: tf.roll(y, 1, 0))(x), "Roll"),
    ],
)
def test_the_op_that_mixes_rows_is_named(compute: Callable[[Any], Any], op_type: str) -> None:
    flow = flow_of(compute, (None, LENGTH, WIDTH))
    assert isinstance(flow, Mixed)
    assert flow.origin.type.removeprefix("Stateless") == op_type


def test_what_depends_on_the_number_of_rows_alone() -> None:
    flow = flow_of(lambda x: tf.cast(rows(x) * LENGTH, tf.float32), (None, LENGTH))
    assert isinstance(flow, Uniform)
    assert flow.power == 1
    assert flow_of(lambda x: tf.cond(rows(x) > 0, lambda: 2 * x, lambda: tf.abs(x)), (None, 2)) == Apart(0)
    assert isinstance(flow_of(lambda x: tf.cond(rows(x) > 4, lambda: 2 * x, lambda: tf.abs(x)), (None, 2)), Mixed)
