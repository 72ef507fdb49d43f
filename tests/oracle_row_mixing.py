"""Probe whether rows of a batch influence each other: custom layers run on random rows and on parts of them.

A layer of Keras computes every row by itself, except for statistics that it keeps. A custom layer may subtract the mean
over the batch, or compare each row with all others, and so compute something else when the batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from oracle_piece import piece_function

from partitioner.capture.functions.reader import CONDITIONALS
from partitioner.capture.lower.graph_def import READ
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.step import CapturedStep

_ROWS = 6
# No part has a single row: a squeeze of all axes of size 1 would remove the axis of the rows.
_SPLITS = ((3, 3), (2, 4))
_DRAWS = 3
# Relative to the largest value: sums of other lengths round differently, and 16 bits have three digits or less.
_TOLERANCE = {"float16": 0.05, "bfloat16": 0.05}
_DEFAULT_TOLERANCE = 1e-4
_SIZES = ("Shape", "ShapeN", "Size", "Rank")
_CANNOT_RUN = (tf.errors.OpError, ValueError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMixing:
    """Whether rows of a batch influence each other in a step.

    Attributes:
        layer: Title of the first layer whose results for a row depend on other rows; empty if there is none.
        uncuttable: Why the results of parts cannot be put together; empty if they can.
    """

    layer: str = ""
    uncuttable: str = ""


def row_mixing(step: CapturedStep, static_shape: Callable[[str], Any]) -> RowMixing:
    """Whether the outputs for a row depend on other rows, other than by statistics that a layer of Keras keeps.

    The ops that custom layers add to the forward pass run on CPU:0 on 6 rows of random values, and on 2 to 4 of them,
    without side effects and with given random numbers; variables have their real values. Layers whose ops cannot run
    like this are assumed to compute every row by itself.

    Args:
        step: A step of any kind.
        static_shape: Shape of a tensor as it was traced, the batch open, by name.
    """
    piece = _piece(step, static_shape)
    with tf.device("CPU:0"):
        found = _row_mixing(step, piece) if piece.results else RowMixing()
    return found if found.layer or found.uncuttable else RowMixing(layer=_decides_for_all_rows(step.graph))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """An input tensor: its static shape, its sizes for the step's batch, and the axis of the rows."""

    dtype: Any
    static: Any
    sizes: tuple[int, ...]
    axis: int | None
    per_row: int

    def values(self, generator: np.random.Generator, draw: int) -> np.ndarray:
        """Random values for all rows."""
        shape = list(self.sizes)
        if self.axis is not None:
            shape[self.axis] = _ROWS * self.per_row
        if self.dtype.is_floating or self.dtype.is_complex:
            return generator.uniform(0.1, 0.9, shape) if draw == 0 else generator.standard_normal(shape)
        return generator.integers(0, 2, shape)

    def part(self, values: np.ndarray, start: int, end: int) -> Any:
        """The tensor of some of the rows."""
        if self.axis is not None:
            values = np.take(values, range(start * self.per_row, end * self.per_row), axis=self.axis)
        return tf.cast(tf.constant(values), self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Ops of custom layers, their inputs, and the tensors that each layer makes for others, by name."""

    ops: frozenset[str]
    given: Mapping[str, _Given]
    results: tuple[str, ...]


def _piece(step: CapturedStep, static_shape: Callable[[str], Any]) -> _Piece:
    graph = step.graph
    outputs = [name for name in tf.nest.flatten(step.outputs["y_pred"]) if name is not None]
    needed = _needed(graph, outputs)
    apart = {layer.path for layer in graph.layers if layer.keeps_rows_apart}
    inside = {op.name for op in needed if op.layer not in apart and not _is_given(step, op)}
    given: dict[str, _Given] = {}
    stack = [graph.op[name] for name in inside]
    while stack:
        for name in stack.pop().inputs:
            maker = graph.op[graph.tensor[name].producer]
            if maker.name in inside or name in given:
                continue
            tensor = _given(step, name, static_shape(name))
            if tensor.dtype.is_integer and tensor.axis is None and not _is_given(step, maker):
                inside.add(maker.name)  # sizes must not be random
                stack.append(maker)
            else:
                given[name] = tensor
    by_row = {name for name, tensor in given.items() if tensor.axis is not None}
    readers: dict[str, set[str]] = {}
    for op in needed:
        for name in op.inputs:
            readers.setdefault(name, set()).add(op.layer if op.name in inside else "")
    results = []
    for op in needed:
        if op.name in inside and by_row.intersection(op.inputs):
            by_row.update(op.outputs)
            results += [name for name in op.outputs if name in outputs or readers.get(name, set()) - {op.layer}]
    numbers = [name for name in results if _is_number(tf.as_dtype(graph.tensor[name].spec.dtype))]
    return _Piece(ops=frozenset(inside), given=given, results=tuple(numbers))


def _decides_for_all_rows(graph: OpGraph) -> str:
    """Title of a custom layer's conditional that takes one branch for the whole batch, by values in its rows.

    Such an op is not run by the probe where its branches have effects, and random rows may take the same branch.
    """
    apart = {layer.path for layer in graph.layers if layer.keeps_rows_apart}
    by_values = graph.depending_on((graph.tensor[name].producer for name in graph.inputs), but=_SIZES)
    for op in graph.ops:
        decides = op.type in CONDITIONALS and graph.tensor[op.inputs[0]].producer in by_values
        if decides and op.phase is Phase.FORWARD and op.layer not in apart:
            return op.title
    return ""


def _needed(graph: OpGraph, outputs: Sequence[str]) -> list[Op]:
    """The ops that the outputs depend on, in graph order."""
    needed = {graph.tensor[name].producer for name in outputs}
    for op in reversed(graph.ops):
        if op.name in needed:
            needed.update(graph.tensor[name].producer for name in op.inputs)
    return [op for op in graph.ops if op.name in needed and op.phase is Phase.FORWARD]


def _is_given(step: CapturedStep, op: Op) -> bool:
    """Whether an op's outputs are replaced by random values: arguments, random numbers, and ops with side effects."""
    if op.type == "Placeholder":
        return op.name not in step.captures
    return op.draws or (op.stateful and op.type != READ)


def _given(step: CapturedStep, name: str, static: Any) -> _Given:
    spec = step.graph.tensor[name].spec
    has_rank = static.rank == len(spec.shape)
    sizes = static.as_list() if has_rank else [None] * len(spec.shape)
    axis = next((axis for axis, size in enumerate(sizes) if size is None), None)
    per_row = 1 if axis is None else max(1, spec.shape[axis] // step.graph.batch_size)
    return _Given(
        dtype=tf.as_dtype(spec.dtype), static=sizes if has_rank else None, sizes=spec.shape, axis=axis, per_row=per_row
    )


def _is_number(dtype: Any) -> bool:
    return dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool


def _row_mixing(step: CapturedStep, piece: _Piece) -> RowMixing:
    graph, outputs = step.graph, tf.nest.flatten(step.outputs["y_pred"])
    specs = {name: tf.TensorSpec(given.static, given.dtype) for name, given in piece.given.items()}
    draws = [
        [given.values(np.random.default_rng([draw, place]), draw) for place, given in enumerate(piece.given.values())]
        for draw in range(_DRAWS)
    ]

    def on(values: Sequence[np.ndarray], start: int, end: int) -> list[np.ndarray]:
        parts = (given.part(value, start, end) for given, value in zip(piece.given.values(), values, strict=True))
        return [_array(made) for made in run(*parts)]

    try:
        run = piece_function(step, piece.ops, specs, piece.results)
        wholes = [on(values, 0, _ROWS) for values in draws]
    except _CANNOT_RUN:
        return RowMixing()
    layer = ""
    for values, whole in zip(draws, wholes, strict=True):
        for first, _ in _SPLITS:
            try:
                parts = zip(on(values, 0, first), on(values, first, _ROWS), strict=True)
            except _CANNOT_RUN as error:
                reason = str(error).strip().partition("\n")[0]
                return RowMixing(uncuttable=f"the model ran on {_ROWS} rows, but not on {first} of them: {reason}")
            for name, expected, pieces in zip(piece.results, whole, parts, strict=True):
                producer = graph.op[graph.tensor[name].producer]
                title, dtype = producer.title, graph.tensor[name].spec.dtype
                together = _together(expected, pieces)
                if together is None and name in outputs:
                    reason = f"the output of {title!r} for a part of the batch is no part of what it is for the whole"
                    return RowMixing(layer=layer or title, uncuttable=reason)
                if together is None or not all(_is_same(expected, part, dtype) for part in together):
                    layer = layer or title
    return RowMixing(layer=layer)


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor)


def _together(whole: np.ndarray, parts: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
    """What should equal the whole: the parts joined along the axis where they are shorter, or each part.

    None where they do not fit together. Integers without rows are sizes, and may differ.
    """
    if all(part.shape == whole.shape for part in parts):
        return () if whole.dtype.kind in "iub" else parts
    if any(part.ndim != whole.ndim for part in parts):
        return None
    axes = [axis for axis, size in enumerate(whole.shape) if any(part.shape[axis] != size for part in parts)]
    if len(axes) != 1:
        return None
    joined = np.concatenate(parts, axis=axes[0])
    return [joined] if joined.shape == whole.shape else None


def _is_same(whole: np.ndarray, together: np.ndarray, dtype: str) -> bool:
    if whole.dtype.kind in "iub":
        return bool(np.array_equal(whole, together))
    room = _TOLERANCE.get(dtype, _DEFAULT_TOLERANCE) * float(
        np.max(np.abs(whole), initial=0.0, where=np.isfinite(whole))
    )
    return bool(np.allclose(whole, together, rtol=0.0, atol=room, equal_nan=True))
