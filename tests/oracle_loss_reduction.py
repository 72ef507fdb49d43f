"""Probe whether a loss averages over the rows of a batch: its ops run on random rows and on parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from oracle_piece import piece_function

from partitioner.ir.graph_def import producer
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.ir.step import CapturedStep, LossReduction

_ROWS = 4
_SPLITS = ((2, 2), (1, 3))
_DRAWS = 2
_TOLERANCE = 1e-4


def loss_reduction(step: CapturedStep, loss_name: str, static_shape: Callable[[str], Any]) -> tuple[LossReduction, str]:
    """How the loss of a batch follows from the losses of its parts; for OTHER, also a sentence that says why.

    MEAN if it is the sum of n_m / n times the loss of part m with n_m of the n rows, SUM if it is their plain sum, both
    within 1e-4 of it. The ops between the loss and what it is made of (outputs, targets, weights, and activations with
    a loss of their own, row by row) run on CPU:0 on 4 rows of random values, without their side effects. Tensors that
    depend on variables alone get random values, the same for every part.

    Args:
        step: A step with a loss.
        loss_name: Name of the loss in the sentence.
        static_shape: Shape of a tensor as it was traced, the batch open, by name.
    """
    if step.fixed_batch:
        return LossReduction.OTHER, step.fixed_batch
    piece = _loss_piece(step, static_shape)
    if piece.stray:
        return LossReduction.OTHER, piece.stray
    try:
        with tf.device("CPU:0"):
            parts = _loss_of_parts(step, piece)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return LossReduction.OTHER, f"loss {loss_name!r} cannot be run alone: {type(error).__name__}: {first}"
    for reduction in (LossReduction.MEAN, LossReduction.SUM):
        if all(np.isclose(part.combined(reduction), part.whole, rtol=_TOLERANCE, atol=0) for part in parts):
            return reduction, ""
    return LossReduction.OTHER, f"loss {loss_name!r} is not an average or a sum over rows: {_worst(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LossPiece:
    """The ops that make the loss.

    Attributes:
        ops: Names of its ops.
        by_row: Names of its inputs that hold a value per row: outputs, targets, weights, and activations.
        activations: Those that the model adds a loss of, other than by its outputs.
        shared: Names of its inputs that depend on variables alone.
        stray: A sentence about masks that it reads; empty if there are none.
    """

    ops: frozenset[str]
    by_row: tuple[str, ...]
    activations: frozenset[str]
    shared: tuple[str, ...]
    stray: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The loss of a batch, and of parts with `rows` of its rows."""

    whole: float
    rows: tuple[int, ...]
    losses: tuple[float, ...]

    def combined(self, reduction: LossReduction) -> float:
        weights = [n / _ROWS if reduction is LossReduction.MEAN else 1 for n in self.rows]
        return sum(weight * loss for weight, loss in zip(weights, self.losses, strict=True))


def _worst(parts: Sequence[_Parts]) -> str:
    worst = max(parts, key=lambda part: abs(part.combined(LossReduction.MEAN) - part.whole))
    sizes = [f"{loss:.4g} on {rows}" for rows, loss in zip(worst.rows, worst.losses, strict=True)]
    return f"{worst.whole:.4g} on {_ROWS} rows, {' and '.join(sizes)} of them"


def _loss_piece(step: CapturedStep, static_shape: Callable[[str], Any]) -> _LossPiece:
    graph = step.graph
    num_x = sum(spec is not None for spec in tf.nest.flatten(step.specs[0]))
    cut = _output_tensors(graph, tf.nest.flatten(step.outputs["y_pred"])) | set(step.inputs[num_x:])
    from_rows = graph.depending_on(map(producer, step.inputs))
    from_variables = graph.depending_on(op.name for op in graph.ops if op.variables)
    ops: set[str] = set()
    by_row: dict[str, None] = {}
    activations: set[str] = set()
    shared: dict[str, None] = {}
    stray: list[str] = []
    stack = [step.outputs["loss"]]
    while stack:
        name = stack.pop(0)
        op = graph.op[graph.tensor[name].producer]
        is_float = tf.as_dtype(graph.tensor[name].spec.dtype).is_floating
        if name in cut:
            by_row[name] = None
        elif op.name in from_rows and (op.layer or op.type == "Placeholder") and _has_rows(step, name, static_shape):
            if graph.tensor[name].spec.dtype == "bool":
                stray.append(f"the loss is masked by {op.layer or name!r}")
            by_row[name] = None
            activations.add(name)
        elif op.name not in from_rows and op.name in from_variables and is_float:
            shared[name] = None
        elif op.name not in ops:
            ops.add(op.name)
            stack.extend(op.inputs)
    return _LossPiece(
        ops=frozenset(ops),
        by_row=tuple(by_row),
        activations=frozenset(activations),
        shared=tuple(shared),
        stray=next(iter(stray), ""),
    )


def _has_rows(step: CapturedStep, name: str, static_shape: Callable[[str], Any]) -> bool:
    """Whether the first axis of a tensor is the batch, row by row."""
    shape = static_shape(name)
    sizes = step.graph.tensor[name].spec.shape
    return bool(shape.rank) and shape[0] is None and sizes[0] == step.graph.batch_size


def _output_tensors(graph: OpGraph, y_pred: Sequence[str]) -> set[str]:
    """The outputs and like tensors of their layers: Keras computes a cross entropy from the logits."""
    tensors = set(y_pred)
    for name in y_pred:
        layer = graph.op[graph.tensor[name].producer].layer
        beside = [op for op in graph.ops if op.layer == layer != "" and op.phase is Phase.FORWARD]
        made = {tensor for op in beside for tensor in (*op.inputs, *op.outputs)}
        tensors |= {tensor for tensor in made if graph.tensor[tensor].spec == graph.tensor[name].spec}
    return tensors


def _loss_of_parts(step: CapturedStep, piece: _LossPiece) -> list[_Parts]:
    run = _loss_function(step, piece)
    special = _compared_with(run.graph)
    results: list[_Parts] = []
    for draw in range(_DRAWS):
        generator = np.random.default_rng(draw)
        far = piece.activations if draw else frozenset[str]()
        by_row = [_values_by_row(step, name, special, generator, far=name in far) for name in piece.by_row]
        shared = [generator.uniform(0.1, 0.9, step.graph.tensor[name].spec.shape) for name in piece.shared]

        def loss(
            start: int, end: int, by_row: Sequence[np.ndarray] = by_row, shared: Sequence[np.ndarray] = shared
        ) -> float:
            values = [*(value[start:end] for value in by_row), *shared]
            names = (*piece.by_row, *piece.shared)
            typed = [tf.constant(v, step.graph.tensor[n].spec.dtype) for v, n in zip(values, names, strict=True)]
            return float(tf.reduce_sum(run(*typed)[0]))

        for first, second in _SPLITS:
            losses = (loss(0, first), loss(first, _ROWS))
            results.append(_Parts(whole=loss(0, _ROWS), rows=(first, second), losses=losses))
    # Far from zero and below it, a loss of activations may have no value: the logarithm of what is never negative.
    return [part for part in results if np.isfinite(part.whole)] or results


def _loss_function(step: CapturedStep, piece: _LossPiece) -> Any:
    """The loss as a function of the values by row, any number of rows of them, and the shared values."""
    specs = {name: step.graph.tensor[name].spec for name in (*piece.by_row, *piece.shared)}
    given = {name: tf.TensorSpec([None, *specs[name].shape[1:]], specs[name].dtype) for name in piece.by_row}
    given |= {name: tf.TensorSpec(specs[name].shape, specs[name].dtype) for name in piece.shared}
    return piece_function(step, piece.ops, given, [step.outputs["loss"]])


def _compared_with(graph: Any) -> list[float]:
    """The constants in comparisons, e.g. the class that a loss ignores: targets should include them."""
    sides = [tensor for op in graph.get_operations() if op.type in ("Equal", "NotEqual") for tensor in op.inputs]
    values = [tf.get_static_value(tensor) for tensor in sides]
    return sorted({float(value) for value in values if value is not None and np.ndim(value) == 0})


def _values_by_row(
    step: CapturedStep, name: str, special: Sequence[float], generator: np.random.Generator, *, far: bool
) -> np.ndarray:
    """Random values for the rows of an output, a target, a weight or an activation; targets take `special` values, too.

    With `far`, values have both signs and pass 1: a loss may begin only there (a hinge).
    """
    spec = step.graph.tensor[name].spec
    shape = (_ROWS, *spec.shape[1:])
    num_x, num_y = (sum(s is not None for s in tf.nest.flatten(specs)) for specs in step.specs[:2])
    targets = step.inputs[num_x : num_x + num_y]
    if tf.as_dtype(spec.dtype).is_floating:
        values = 3 * generator.standard_normal(shape) if far else generator.uniform(0.1, 0.9, shape)
        if name in targets and special:
            # A single value marks what the loss ignores; several are the only allowed targets, as in a hinge loss.
            share = 0.5 if len(special) == 1 else 1.0
            values = np.where(generator.random(shape) < share, generator.choice(special, shape), values)
        return values
    if name not in targets:
        return generator.integers(0, 2, shape)
    y_pred = tf.nest.flatten(step.outputs["y_pred"])
    beside = y_pred[targets.index(name)] if len(y_pred) == num_y else y_pred[0]
    sizes = step.graph.tensor[beside].spec.shape
    classes = [0.0] if sizes[-1] == 1 else [0.0, 1.0]
    return generator.choice(sorted({*classes, *(value for value in special if value == int(value))}), shape)
