"""The same step for another batch size: its shapes, and whether its batch can be cut at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from cost_models.specs import TensorSpec
from partitioner.capture.functions.reading import Reading
from partitioner.capture.lower.shapes import settle_shapes
from partitioner.capture.trace.trace import Trace
from partitioner.ir.graph_def import producer, prune
from partitioner.ir.op_graph import OpGraph, Phase, Tensor
from partitioner.ir.step import CapturedStep


class BatchSizes:
    """The op graph of a step for any number of rows; each is made once.

    TensorFlow infers the shapes for one further number of rows. Where every size in every shape is equal for both
    numbers or proportional to the rows, this is assumed for all numbers of rows (wrong only for index vectors of a few
    bytes where a single row is broadcast). Graphs with loops or with shapes that depend on values are inferred for each
    number.
    """

    def __init__(self, step: CapturedStep) -> None:
        self._step = step
        self._graphs = {step.graph.batch_size: step.graph}

    def __call__(self, rows: int) -> OpGraph:
        """The op graph for a batch of so many rows."""
        if rows not in self._graphs:
            self._graphs[rows] = self._proportional(rows) or graph_for_batch(self._step, rows)
        return self._graphs[rows]

    def _proportional(self, rows: int) -> OpGraph | None:
        whole = self._step.graph
        if whole.runs or whole.assumed_shapes or any(spec.content_bytes for spec, _ in self._pairs):
            return None
        specs = []
        for spec, other in self._pairs:
            sizes = zip(spec.shape, other.shape, strict=True)
            shape = [_proportional(a, whole.batch_size, b, self._other_rows, rows) for a, b in sizes]
            known = tuple(size for size in shape if size is not None)
            if len(known) < len(shape):
                return None
            specs.append(replace(spec, shape=known))
        tensors = [
            Tensor(name=tensor.name, producer=tensor.producer, spec=specs[pair])
            for tensor, pair in zip(whole.tensors, self._pair_of_tensor, strict=True)
        ]
        return whole.resized(rows, tensors, self._alike)

    @property
    def _other_rows(self) -> int:
        """The further number of rows; not one, as a single row may be broadcast."""
        whole = self._step.graph.batch_size
        return 3 if whole == 2 else max(2, whole // 2)

    @cached_property
    def _pairs(self) -> list[tuple[TensorSpec, TensorSpec]]:
        """The distinct specs of tensors for both numbers of rows."""
        return [*dict.fromkeys(self._pair_of_each)]

    @cached_property
    def _pair_of_tensor(self) -> list[int]:
        number = {pair: index for index, pair in enumerate(self._pairs)}
        return [number[pair] for pair in self._pair_of_each]

    @cached_property
    def _alike(self) -> list[int]:
        """For each op, the index of the first with the same pairs of specs."""
        graph = self._step.graph
        pair = {tensor.name: index for tensor, index in zip(graph.tensors, self._pair_of_tensor, strict=True)}
        first: dict[object, int] = {}
        return [
            first.setdefault((spec_of, *(pair[name] for name in (*op.inputs, *op.outputs))), index)
            for index, (op, spec_of) in enumerate(zip(graph.ops, map(id, graph.specs), strict=True))
        ]

    @cached_property
    def _pair_of_each(self) -> list[tuple[TensorSpec, TensorSpec]]:
        other = graph_for_batch(self._step, self._other_rows)
        return [(a.spec, b.spec) for a, b in zip(self._step.graph.tensors, other.tensors, strict=True)]


def _proportional(size: int, rows: int, other_size: int, other_rows: int, wanted: int) -> int | None:
    """The size for the wanted rows, if it is equal for both numbers of rows or proportional to them."""
    if size == other_size:
        return size
    scaled, rest = divmod(size * wanted, rows)
    return None if rest or size * other_rows != other_size * rows else scaled


def graph_for_batch(step: CapturedStep, batch_size: int) -> OpGraph:
    """The op graph of `step` with the shapes of a batch of `batch_size` rows, otherwise unchanged."""
    graph, fixed = step.graph, _updates_of_any_batch(step)
    arguments = [spec for spec in tf.nest.flatten(step.specs) if spec is not None]
    inputs = dict(zip(map(producer, step.inputs), arguments, strict=True))
    looked_at = prune(step.graph_def, (node.name for node in step.graph_def.node if node.name not in fixed))
    settled = settle_shapes(looked_at, inputs, step.captures, batch_size)
    tensors = tuple(replace(tensor, spec=settled.specs.get(tensor.name, tensor.spec)) for tensor in graph.tensors)
    return replace(graph, batch_size=batch_size, tensors=tensors, **settled_fields(settled, tensors))


def _updates_of_any_batch(step: CapturedStep) -> set[str]:
    """The updates whose shapes are the same for any batch size: of a large step a third to a half.

    A dense gradient has the shape of its variable. Sparse ones have rows of the batch, and so have updates by them.
    What runs a function, or has a shape that depends on values, is read again.
    """
    graph = step.graph
    dense = {name for name in step.outputs.get("gradients", ()) if isinstance(name, str)}
    sized, fixed = set(step.inputs), set[str]()
    for op in graph.ops:
        if not sized.isdisjoint(op.inputs):
            sized.update(name for name in op.outputs if name not in dense)
        elif op.phase is Phase.UPDATE:
            fixed.add(op.name)
    return fixed.difference(graph.runs, map(producer, graph.assumed_shapes))


def settled_fields(settled: Reading, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """The fields of an op graph with these tensors that depend on the batch size."""
    sized = {tensor.name for tensor in tensors if tensor.size_bytes}
    return {
        "assumed_shapes": tuple(settled.assumed),
        "runs": settled.runs,
        "passed_on": {a: b for a, b in settled.passed_on.items() if a in sized and b in sized},
        "assumed_trips": settled.assumed_trips,
    }


def fixed_batch(trace: Trace) -> str:
    """Why the batch of a traced step cannot be cut into microbatches; empty if it can."""
    if "y_pred" not in trace.outputs:
        return "the model defines this step itself, so only it says what a part of a batch would give"
    for tensor in trace.inputs:
        shape = tensor.shape
        if shape.rank == 0:
            return f"input {tensor.op.name!r} has no batch axis: shape ()"
        if shape.rank and shape[0] is not None:
            return f"input {tensor.op.name!r} has the fixed batch size {shape[0]}"
    for tensor in tf.nest.flatten(trace.outputs["y_pred"]):
        shape = tensor.shape
        if shape.rank == 0 or (shape.rank and shape[0] is not None):
            name = trace.layer_of.get(tensor.op.name, tensor.name)
            return f"output {name!r} has no batch axis: shape {tuple(shape.as_list())}"
    return ""
