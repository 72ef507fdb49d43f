"""The unplaced model, the way Keras trains it: with a tape and no devices. The placed one is held against it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.ir.execution import SEED_STRIDE
from partitioner.verification.data import as_dense, flat_arrays


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What a run of several steps produced, as float64 arrays: of the first step, and of the variables at the end."""

    outputs: list[np.ndarray]
    loss: list[np.ndarray]
    gradients: list[np.ndarray]
    weights: list[np.ndarray]


@contextmanager
def restored(variables: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Put `variables` back to their present values at the end, and whenever the yielded function is called."""
    saved = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    try:
        yield restore
    finally:
        restore()


def nudged(restore: Callable[[], None], variables: Sequence[Any], towards: float = np.inf) -> Callable[[], None]:
    """`restore`, and then every float of `variables` one unit in the last place nearer to `towards`."""

    def restore_and_nudge() -> None:
        restore()
        for variable in variables:
            value = variable.numpy()
            variable.assign(np.nextafter(value, np.full_like(value, towards)))

    return restore_and_nudge


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How a batch is cut where its rows influence each other, and what becomes of the state that they change.

    Attributes:
        num_microbatches: Parts of each replica, one after the other.
        num_replicas: Each begins with the state that the step began with; the mean of what they end with remains, of
            whole numbers what the first one ends with.
        states: Variables that the forward pass writes.
        seeds: Those of them that random numbers are drawn from: each replica begins with another.
        adds_up: Whether the loss is a sum over rows, rather than their mean.
    """

    num_microbatches: int = 1
    num_replicas: int = 1
    states: Sequence[Any] = ()
    seeds: Sequence[Any] = ()
    adds_up: bool = False

    @property
    def count(self) -> int:
        """Of all parts."""
        return self.num_microbatches * self.num_replicas


def reference_functions(
    model: keras.Model,
    compute_loss: Callable[..., Any],
    optimizer: Any,
    specs: tuple[Any, Any],
    *,
    parts: Parts | None = None,
) -> tuple[Any, Any]:
    """`gradients(x, y)` -> (outputs, loss, gradients) and `train(x, y)` -> loss, of the unplaced model.

    Gradients are those the optimizer is given: of the scaled loss where it scales. Both are traced for `specs`, whose
    batch size is open as in `fit`: with a known one TensorFlow divides by constants, and rounds otherwise. With
    `parts`, the model runs on one after the other, and what they give is brought together before the update.
    """
    cut = parts or Parts()

    def differentiated(x: Any, y: Any) -> tuple[Any, Any, list[Any]]:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = compute_loss(x, y, y_pred, None, True)
            scaled = optimizer.scale_loss(loss)
        return y_pred, loss, tape.gradient(scaled, model.trainable_variables)

    def accumulated(x: Any, y: Any) -> tuple[Any, Any, list[Any]]:
        if cut.count == 1:
            return differentiated(x, y)
        batches, shares = _parts((x, y), cut.count)
        weights = [tf.ones_like(share) for share in shares] if cut.adds_up else shares
        starts = [tf.identity(tf.convert_to_tensor(state)) for state in cut.states]
        found, ends = [], []
        for replica in range(cut.num_replicas):
            for state, start in zip(cut.states, starts, strict=True):
                state.assign(start + _stride(start, replica) if _is_in(state, cut.seeds) else start)
            mine = slice(replica * cut.num_microbatches, (replica + 1) * cut.num_microbatches)
            found += [differentiated(*batch) for batch in batches[mine]]
            ends.append([tf.identity(tf.convert_to_tensor(state)) for state in cut.states])
        for state, *values in zip(cut.states, *ends, strict=True):
            state.assign(tf.add_n(values) / len(values) if values[0].dtype.is_floating else values[0])
        outputs, losses, gradients = zip(*found, strict=True)
        y_pred = tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *outputs)
        given = {value.name for value in tf.nest.flatten((x, y))} | _captured(cut.states)
        return y_pred, _weighted(losses, weights), [_added(one, weights, given) for one in zip(*gradients, strict=True)]

    @tf.function(autograph=False, input_signature=list(specs))
    def gradients(x: Any, y: Any) -> tuple[Any, Any, Any]:
        y_pred, loss, found = accumulated(x, y)
        return y_pred, loss, [None if g is None else as_dense(g, v.shape) for g, v in _pairs(found, model)]

    @tf.function(autograph=False, input_signature=list(specs))
    def train(x: Any, y: Any) -> Any:
        _, loss, found = accumulated(x, y)
        optimizer.apply_gradients(list(_pairs(found, model)))
        return loss

    return gradients, train


def outputs_function(model: keras.Model, x_specs: Any, *, num_parts: int = 1) -> Any:
    """`outputs(x)` of the unplaced model in inference; of so many parts of the batch, one after the other."""

    def of_part(x: Any) -> Any:
        return model(x, training=False) if model._call_has_training_arg else model(x)

    @tf.function(autograph=False, input_signature=[x_specs])
    def outputs(x: Any) -> Any:
        if num_parts == 1:
            return of_part(x)
        found = map(of_part, _parts(x, num_parts)[0])
        return tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *found)

    return outputs


def _parts(batch: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Parts of a batch, as equal in rows as can be, the first ones larger by one; and their shares of the rows."""
    flat = tf.nest.flatten(batch)
    rows: Any = tf.shape(flat[0])[0]
    sizes = rows // count + tf.cast(tf.range(count) < rows % count, tf.int32)
    cut = [tf.split(value, sizes, num=count) for value in flat]
    shares = tf.unstack(tf.cast(sizes, tf.float32) / tf.cast(rows, tf.float32), count)
    return [tf.nest.pack_sequence_as(batch, [parts[index] for parts in cut]) for index in range(count)], shares


def _weighted(values: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Weighted sum of what parts gave."""
    return tf.add_n([v * tf.cast(w, v.dtype) for v, w in zip(values, weights, strict=True)])


def _added(gradients: Sequence[Any], weights: Sequence[Any], given: Collection[str]) -> Any:
    """Weighted sum of the gradients of parts; a sparse one stays sparse, which some optimizers treat otherwise.

    Its slices stand one after the other as they would for the whole batch. Where the rows that they belong to do not
    come from the batch or from random numbers (`given`, tensors by name), the whole batch has each of them once.
    """
    if not isinstance(gradients[0], tf.IndexedSlices):
        return None if gradients[0] is None else _weighted(gradients, weights)
    one = gradients[0]
    if not _comes_from(one.indices, given):
        return tf.IndexedSlices(_weighted([g.values for g in gradients], weights), one.indices, one.dense_shape)
    rows = [g.values * tf.cast(w, g.values.dtype) for g, w in zip(gradients, weights, strict=True)]
    indices = tf.concat([g.indices for g in gradients], axis=0)
    return tf.IndexedSlices(tf.concat(rows, axis=0), indices, one.dense_shape)


def _captured(variables: Sequence[Any]) -> set[str]:
    """Names of what stands for these variables in the function that is being traced."""
    graph: Any = tf.compat.v1.get_default_graph()
    handles = [variable.handle for variable in variables]
    return {inside.name for outside, inside in graph.captures if any(outside is handle for handle in handles)}


def _comes_from(tensor: Any, given: Collection[str]) -> bool:
    """Whether any of the tensors goes into one, through whichever ops."""
    seen, left = set[str](), [tensor]
    while left:
        one = left.pop()
        if one.name in given:
            return True
        if one.op.name not in seen:
            seen.add(one.op.name)
            left += one.op.inputs
    return False


def _stride(start: Any, replica: int) -> Any:
    return tf.constant(np.array(replica * SEED_STRIDE).astype(start.dtype.as_numpy_dtype))


def _is_in(variable: Any, others: Sequence[Any]) -> bool:
    return any(variable is other for other in others)


def _pairs(gradients: Sequence[Any], model: keras.Model) -> Iterator[tuple[Any, Any]]:
    return zip(gradients, model.trainable_variables, strict=True)


def run_reference(
    gradients: Any,
    train: Any,
    batches: Sequence[tuple[Any, Any]],
    variables: Sequence[Any],
    restore: Callable[[], None],
) -> Trajectory:
    """Gradients on the first batch, then one training step per batch, from the restored state."""
    restore()
    outputs, loss, found = gradients(*batches[0])
    restore()
    for batch in batches:
        train(*batch)
    return Trajectory(
        outputs=flat_arrays(outputs),
        loss=flat_arrays(loss),
        gradients=flat_arrays(found),
        weights=flat_arrays([variable.value for variable in variables]),
    )
