"""The unplaced model as Keras trains it: with a tape, all of it on the host. The placed model is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.capture.trace.own_step import run_own_step
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.ir.execution import SEED_STRIDE
from partitioner.ir.step import StepKind
from partitioner.verification.data import as_dense, flat_arrays
from partitioner.verification.written_out import with_powers_written_out


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Results of a run of several steps, as float64 arrays: of the first step, and the weights at the end."""

    outputs: list[np.ndarray]
    loss: list[np.ndarray]
    gradients: list[np.ndarray]
    weights: list[np.ndarray]


@contextmanager
def restored(variables: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Restore the present values of `variables` at the end, and at each call of the yielded function."""
    saved = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    try:
        yield restore
    finally:
        restore()


def nudged(restore: Callable[[], None], variables: Sequence[Any], towards: float = np.inf) -> Callable[[], None]:
    """`restore`, and then a change of every float of `variables` by a unit in the last place towards `towards`."""

    def restore_and_nudge() -> None:
        restore()
        for variable in variables:
            value = variable.numpy()
            variable.assign(np.nextafter(value, np.full_like(value, towards)))

    return restore_and_nudge


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How a batch is cut where its rows influence each other, and how the states of the parts are combined.

    Attributes:
        num_microbatches: Parts of each replica, run in order.
        num_replicas: Number of replicas. Each starts from the state before the step; a float state becomes the mean of
            their final states, an integer state the final state of the first replica.
        states: Variables that the forward pass writes.
        seeds: The states of random generators among them: each replica starts from a different value.
        adds_up: Whether the loss is a sum over rows, rather than their mean.
    """

    num_microbatches: int = 1
    num_replicas: int = 1
    states: Sequence[Any] = ()
    seeds: Sequence[Any] = ()
    adds_up: bool = False

    @property
    def count(self) -> int:
        """Number of parts in all."""
        return self.num_microbatches * self.num_replicas


def reference_functions(
    model: keras.Model,
    compute_loss: Callable[..., Any],
    optimizer: Any,
    specs: tuple[Any, Any],
    *,
    parts: Parts | None = None,
    jit_compile: bool = False,
) -> tuple[Any, Any]:
    """`gradients(x, y)` -> (outputs, loss, gradients) and `train(x, y)` -> loss, of the unplaced model on the host.

    Gradients are those the optimizer gets: of the scaled loss where it scales. Both are traced for `specs`, whose batch
    size is open as in `fit`: with a fixed batch size TensorFlow divides by constants, and rounds differently. With
    `parts`, the model runs on each part in order, and their results are combined before the update; the loss of a part
    is weighted before it is differentiated, so that in 16 bits no part overflows where the whole batch does not. With
    `jit_compile` XLA compiles both.
    """
    cut = parts or Parts()

    def differentiated(x: Any, y: Any, weight: Any = None) -> tuple[Any, Any, list[Any]]:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = compute_loss(x, y, y_pred, None, True)
            scaled = optimizer.scale_loss(loss)
        seed = None if weight is None else tf.cast(weight, scaled.dtype)
        return y_pred, loss, tape.gradient(scaled, model.trainable_variables, output_gradients=seed)

    def accumulated(x: Any, y: Any) -> tuple[Any, Any, list[Any]]:
        if cut.count == 1:
            return differentiated(x, y)
        batches, shares = _parts((x, y), cut.count)
        weights = [tf.ones_like(share) for share in shares] if cut.adds_up else shares
        starts = [tf.identity(tf.convert_to_tensor(state)) for state in cut.states]
        results, ends = [], []
        for replica in range(cut.num_replicas):
            for state, start in zip(cut.states, starts, strict=True):
                state.assign(start + _stride(start, replica) if _is_in(state, cut.seeds) else start)
            mine = slice(replica * cut.num_microbatches, (replica + 1) * cut.num_microbatches)
            results += [differentiated(x, y, w) for (x, y), w in zip(batches[mine], weights[mine], strict=True)]
            ends.append([tf.identity(tf.convert_to_tensor(state)) for state in cut.states])
        for state, *values in zip(cut.states, *ends, strict=True):
            state.assign(tf.add_n(values) / len(values) if values[0].dtype.is_floating else values[0])
        outputs, losses, gradients = zip(*results, strict=True)
        y_pred = tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *outputs)
        given = {value.name for value in tf.nest.flatten((x, y))} | _captured(cut.states)
        return (
            y_pred,
            tf.add_n([loss * tf.cast(weight, loss.dtype) for loss, weight in zip(losses, weights, strict=True)]),
            [_added(gradient, given) for gradient in zip(*gradients, strict=True)],
        )

    def gradients(x: Any, y: Any) -> tuple[Any, Any, Any]:
        with tf.device(HOST):
            y_pred, loss, values = accumulated(x, y)
            return y_pred, loss, [None if g is None else as_dense(g, v.shape) for g, v in _pairs(values, model)]

    def train(x: Any, y: Any) -> Any:
        with tf.device(HOST):
            _, loss, values = accumulated(x, y)
            if values:  # Keras warns, and trains nothing
                optimizer.apply_gradients(list(_pairs(values, model)))
            return loss

    written_out = partial(with_powers_written_out, specs=specs, jit_compile=jit_compile)
    return written_out(gradients), written_out(train)


def own_step_function(
    model: keras.Model, kind: StepKind, specs: tuple[Any, Any, Any], *, jit_compile: bool = False
) -> Any:
    """`step(x, y, sample_weight)` -> logs, of a model that defines the step itself, on the host."""

    def step(x: Any, y: Any, sample_weight: Any) -> Any:
        with tf.device(HOST):
            return run_own_step(model, kind, x, y, sample_weight)

    return with_powers_written_out(step, specs, jit_compile=jit_compile)


def outputs_function(model: keras.Model, x_specs: Any, *, num_parts: int = 1, jit_compile: bool = False) -> Any:
    """`outputs(x)` of the unplaced model in inference, on the host, on `num_parts` parts of the batch in order."""

    def of_part(x: Any) -> Any:
        return model(x, training=False) if model._call_has_training_arg else model(x)

    def outputs(x: Any) -> Any:
        with tf.device(HOST):
            if num_parts == 1:
                return of_part(x)
            results = map(of_part, _parts(x, num_parts)[0])
            return tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *results)

    return with_powers_written_out(outputs, [x_specs], jit_compile=jit_compile)


def _parts(batch: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Cut a batch into nearly equal parts, the first ones a row larger; returns also their shares of the rows."""
    flat = tf.nest.flatten(batch)
    rows: Any = tf.shape(flat[0])[0]
    sizes = rows // count + tf.cast(tf.range(count) < rows % count, tf.int32)
    cut = [tf.split(value, sizes, num=count) for value in flat]
    shares = tf.unstack(tf.cast(sizes, tf.float32) / tf.cast(rows, tf.float32), count)
    return [tf.nest.pack_sequence_as(batch, [parts[index] for parts in cut]) for index in range(count)], shares


def _added(gradients: Sequence[Any], given: Collection[str]) -> Any:
    """Sum of the gradients of parts; a sparse gradient stays sparse, which some optimizers treat differently.

    Its slices are concatenated in the order of the whole batch. Where their indices do not depend on the batch or on
    random numbers (`given`, tensors by name), the whole batch has each slice only once.
    """
    if not isinstance(gradients[0], tf.IndexedSlices):
        return None if gradients[0] is None else tf.add_n(gradients)
    first = gradients[0]
    if not _comes_from(first.indices, given):
        return tf.IndexedSlices(tf.add_n([g.values for g in gradients]), first.indices, first.dense_shape)
    rows, indices = (tf.concat([getattr(g, key) for g in gradients], axis=0) for key in ("values", "indices"))
    return tf.IndexedSlices(rows, indices, first.dense_shape)


def _captured(variables: Sequence[Any]) -> set[str]:
    """Names of the captured tensors of these variables in the function that is being traced."""
    graph: Any = tf.compat.v1.get_default_graph()
    handles = [variable.handle for variable in variables]
    return {inside.name for outside, inside in graph.captures if any(outside is handle for handle in handles)}


def _comes_from(tensor: Any, given: Collection[str]) -> bool:
    """Whether a tensor depends on any of the given tensors."""
    seen, left = set[str](), [tensor]
    while left:
        tensor = left.pop()
        if tensor.name in given:
            return True
        if tensor.op.name not in seen:
            seen.add(tensor.op.name)
            left += tensor.op.inputs
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
    """Gradients on the first batch, then a training step per batch, from the restored state."""
    restore()
    outputs, loss, values = gradients(*batches[0])
    restore()
    for batch in batches:
        train(*batch)
    return Trajectory(
        outputs=flat_arrays(outputs),
        loss=flat_arrays(loss),
        gradients=flat_arrays(values),
        weights=flat_arrays([variable.value for variable in variables]),
    )
