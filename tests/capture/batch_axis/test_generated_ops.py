"""Random functions of rows: what is said of each tensor in them holds where they run on parts of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from flows import wrong_claims
from hypothesis import assume, given, settings
from hypothesis import strategies as st

LENGTH, WIDTH = 7, 5
Make = Callable[[Any, Any, int], Any]


def axis(x: Any, number: int) -> int:
    return number % max(x.shape.rank, 1)


def back(x: Any, number: int) -> Any:
    """Shapes that are computed: the rows, or what else is open, beside sizes that are known."""
    sizes = [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape)]
    shift = number % max(len(sizes), 1)
    return tf.reshape(x, sizes[shift:] + sizes[:shift]) if number % 3 else tf.reshape(x, [-1, *sizes[1:]])


def merged(x: Any, number: int) -> Any:
    sizes = tf.shape(x)
    at = axis(x, number) if number % 2 else 0
    return tf.reshape(x, tf.concat([sizes[:at], [-1], sizes[at + 2 :]], 0))


def split_up(x: Any, number: int) -> Any:
    wanted = [[-1, LENGTH, WIDTH], [-1, WIDTH], [LENGTH, -1, WIDTH], [-1, LENGTH], [WIDTH, -1], [-1]][number % 6]
    return tf.reshape(x, wanted)


def scan(x: Any, number: int) -> Any:
    return tf.scan(lambda a, b: a * 0.5 + b, x)


def loop(x: Any, number: int) -> Any:
    trips = number % 4 if number % 2 else tf.shape(x)[0]
    return tf.while_loop(lambda i, y: i < trips, lambda i, y: (i + 1, tf.tanh(y) + x), [0, x])[1]


def turned(x: Any, number: int) -> Any:
    order = list(range(x.shape.rank))
    order.insert(number // 7 % len(order), order.pop(number % len(order)))
    return tf.transpose(x, order)


UNARY: dict[str, Callable[[Any, int], Any]] = {
    "tanh": lambda x, n: tf.tanh(x),
    "negative": lambda x, n: -x,
    "whole": lambda x, n: tf.cast(tf.cast(10 * x, tf.int32), tf.float32),
    "sum": lambda x, n: tf.reduce_sum(x, axis(x, n), keepdims=bool(n % 2)),
    "mean": lambda x, n: tf.reduce_mean(x, axis(x, n), keepdims=bool(n % 2)),
    "mean of all": lambda x, n: tf.reduce_mean(x),
    "largest": lambda x, n: tf.reduce_max(x, axis(x, n), keepdims=bool(n % 2)),
    "place of largest": lambda x, n: tf.cast(tf.argmax(x, axis(x, n)), tf.float32),
    "squares": lambda x, n: tf.nn.l2_loss(x),
    "softmax": lambda x, n: tf.nn.softmax(x, axis(x, n)),
    "running sum": lambda x, n: tf.cumsum(x, axis(x, n)),
    "transpose": turned,
    "split": split_up,
    "merge": merged,
    "back": back,
    "more axes": lambda x, n: tf.expand_dims(x, axis(x, n)),
    "fewer axes": lambda x, n: tf.squeeze(x, [i for i, size in enumerate(x.shape) if size == 1]),
    "reverse": lambda x, n: tf.reverse(x, [axis(x, n)]),
    "roll": lambda x, n: tf.roll(x, 1, axis(x, n)),
    "cut": lambda x, n: x[n % 2 :] if n % 3 else x[..., n % 2 :],
    "one": lambda x, n: x[:, n % 3] if n % 2 else x[..., n % 3],
    "step": lambda x, n: x[:, :: 1 + n % 2],
    "slice": lambda x, n: tf.slice(x, [0] * (x.shape.rank - 1) + [n % 2], [-1] * x.shape.rank),
    "pad": lambda x, n: tf.pad(x, [[n % 2, 0] if i == axis(x, n) else [0, 0] for i in range(x.shape.rank)]),
    "tile": lambda x, n: tf.tile(x, [2 if i == axis(x, n) else 1 for i in range(x.shape.rank)]),
    "halves": lambda x, n: tf.concat([tf.concat([x, -x], axis(x, n)), x][: 1 + n % 2], axis(x, n)),
    "split in two": lambda x, n: tf.split(tf.concat([x, 2 * x], axis(x, n)), 2, axis(x, n))[n % 2],
    "stack": lambda x, n: tf.stack([x, tf.abs(x)], axis(x, n)),
    "unstack": lambda x, n: tf.unstack(x, axis=[i for i, size in enumerate(x.shape) if size][n % 2])[n % 3],
    "gather": lambda x, n: tf.gather(x, [2, 0], axis=axis(x, n)),
    "one hot": lambda x, n: tf.one_hot(tf.cast(x, tf.int32), 3, axis=axis(x, n)),
    "per row": lambda x, n: x / tf.cast(tf.shape(x)[0], tf.float32),
    "times rows": lambda x, n: x * tf.cast(tf.size(x), tf.float32),
    "numbers of rows": lambda x, n: tf.cast(tf.range(tf.shape(x)[0]), tf.float32),
    "zeros": lambda x, n: tf.zeros([tf.shape(x)[0], WIDTH]) + n,
    "broadcast": lambda x, n: tf.broadcast_to(tf.reduce_mean(x), [tf.shape(x)[0], WIDTH]),
    "scan": scan,
    "map": lambda x, n: tf.map_fn(lambda row: tf.nn.softmax(row) if n % 2 else tf.reduce_sum(row), x),
    "loop": loop,
    "cond on size": lambda x, n: tf.cond(tf.shape(x)[0] > n % 5, lambda: 2 * x, lambda: tf.abs(x)),
    "cond on rows": lambda x, n: tf.cond(tf.reduce_sum(x) > 0, lambda: 2 * x, lambda: 3 * x),
    "called": lambda x, n: tf.function(lambda y: tf.reduce_max(y, axis(y, n)))(x),
    "top": lambda x, n: tf.math.top_k(x, 2).values,
    "convolve": lambda x, n: tf.nn.conv1d(x, tf.ones([2, WIDTH, 3]), 1 + n % 2, "SAME", dilations=1 + n // 2 % 2),
    "pool": lambda x, n: tf.nn.max_pool1d(x, 2, 2, "SAME"),
    "normalise": lambda x, n: x - tf.reduce_mean(x, axis(x, n), keepdims=True),
    "batch norm": lambda x, n: tf.compat.v1.nn.fused_batch_norm(
        x[:, None], *[tf.ones(x.shape[-1])] * 2, *[tf.ones(x.shape[-1])] * 2, is_training=bool(n % 2)
    )[0],
}
BINARY: dict[str, Make] = {
    "add": lambda x, y, n: x + y,
    "subtract": lambda x, y, n: x - y,
    "multiply": lambda x, y, n: x * y,
    "divide": lambda x, y, n: x / y,
    "larger": lambda x, y, n: tf.maximum(x, y),
    "chosen": lambda x, y, n: tf.where(x > 0, x, y) if n % 2 else tf.where(y > 0, 0.0, x),
    "concatenate": lambda x, y, n: tf.concat([x, y], axis(x, n)),
    "product": lambda x, y, n: tf.matmul(x, y, transpose_a=bool(n & 1), transpose_b=bool(n & 2)),
    "einsum": lambda x, y, n: tf.einsum(
        ["btd,bsd->bts", "btd,ctd->bc", "btd,btd->td", "...d,d->...", "bd,cd->bc", "btd,bd->bt"][n % 6], x, y
    ),
    "look up": lambda x, y, n: tf.gather(x, tf.cast(tf.abs(y), tf.int32) % 2, axis=axis(x, n)),
    "look up by row": lambda x, y, n: tf.gather(x, tf.cast(tf.abs(y), tf.int32) % 2, axis=1, batch_dims=1),
    "look up points": lambda x, y, n: tf.gather_nd(x, tf.cast(tf.abs(y[..., :1]), tf.int32) % 2),
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 9), st.integers(0, 9), st.integers(0, 41)),
    min_size=1,
    max_size=6,
)


def computed(steps: list[tuple[str, int, int, int]], x: Any, weight: Any) -> Any:
    """The last of some steps, each on earlier values; those that their shapes do not allow are left out."""
    made = [x, weight]
    for name, first, second, number in steps:
        a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
        try:
            made.append(UNARY[name](a, number) if name in UNARY else BINARY[name](a, b, number))
        except (ValueError, IndexError, TypeError, ZeroDivisionError, tf.errors.OpError):
            continue
    return made[-1]


@given(STEPS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_is_said_of_tensors_holds_on_parts_of_the_rows(steps: list[tuple[str, int, int, int]]) -> None:
    try:
        wrong, _ = wrong_claims(lambda x, w: computed(steps, x, w), (None, LENGTH, WIDTH), (WIDTH, WIDTH))
    except (tf.errors.OpError, ValueError):
        assume(False)
        return
    assert not wrong


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_of_each_op_alone(name: str) -> None:
    said = 0
    for number in range(8):
        for second in range(2):
            steps = [(name, 1, second, number)]
            try:
                wrong, count = wrong_claims(
                    lambda x, w, s=steps: computed(s, x, w), (None, LENGTH, WIDTH), (WIDTH, WIDTH)
                )
            except (tf.errors.OpError, ValueError):
                continue
            assert not wrong
            said += count
    assert said
