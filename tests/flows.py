"""What is known of the rows in each tensor of a function, and the same function run on parts of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from partitioner.capture.batch_axis.flow import Apart, Flow, Total, Uniform
from partitioner.capture.batch_axis.walk import Walk
from partitioner.capture.lower.shapes import settle_shapes

ROWS = 6
PARTS = ((3, 3), (2, 4))


def flows_of(compute: Callable[..., Any], *shapes: tuple[int | None, ...], rows: int = ROWS) -> Mapping[str, Flow]:
    """The flow of each tensor of a traced function of float tensors of such shapes, by name; no op is trusted."""
    return _walked(_traced(compute, shapes), rows)


def flow_of(compute: Callable[..., Any], *shapes: tuple[int | None, ...], rows: int = ROWS) -> Flow:
    """The flow of the only result."""
    function = _traced(compute, shapes)
    return _walked(function, rows)[function.outputs[0].name]


def wrong_claims(compute: Callable[..., Any], *shapes: tuple[int | None, ...]) -> tuple[list[str], int]:
    """The numeric tensors whose values on parts of random rows contradict their flow, and how many say something.

    Raises:
        tf.errors.InvalidArgumentError: The function does not run on six rows.
    """
    function = _traced(compute, shapes)
    flows = _walked(function, ROWS)
    claimed = {
        name: tensor
        for op in function.graph.get_operations()
        for tensor in op.outputs
        if (name := tensor.name) in flows
        and isinstance(flows[name], Apart | Total | Uniform)
        and (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool)
        and not _is_unwritten(tensor)
    }
    evaluate = _evaluated(function, list(claimed))
    generator = np.random.default_rng(0)
    whole_inputs = [generator.standard_normal([ROWS if s is None else s for s in shape]) for shape in shapes]

    def run(start: int, end: int) -> list[np.ndarray]:
        parts = [
            tf.constant(value[start:end] if shape[0] is None else value, tf.float32)
            for value, shape in zip(whole_inputs, shapes, strict=True)
        ]
        return [made.numpy() for made in evaluate(*parts)]

    whole = run(0, ROWS)
    wrong = []
    for first, second in PARTS:
        parts = zip(run(0, first), run(first, ROWS), strict=True)
        for name, expected, pieces in zip(claimed, whole, parts, strict=True):
            if not _agrees(flows[name], expected, list(pieces), (first, second)):
                wrong.append(f"{claimed[name].op.type} {name}: {flows[name]}")
    return wrong, sum(not isinstance(flows[name], Uniform) for name in claimed)


def _is_unwritten(tensor: Any) -> bool:
    """Whether some kernels write nothing there: what a normalisation in inference would keep for its gradients."""
    return tensor.op.type == "FusedBatchNormV3" and not tensor.op.get_attr("is_training") and tensor.value_index > 2


def _agrees(flow: Flow, whole: np.ndarray, parts: list[np.ndarray], rows: tuple[int, ...]) -> bool:
    match flow:
        case Uniform(power=None) if flow.numbers is None:
            return True
        case Uniform(power=None):
            known = zip(flow.numbers.flat, whole.flat, strict=True)  # type: ignore[union-attr]
            return all(not size.is_known or np.isclose(float(size.at(ROWS)), value) for size, value in known)
        case Uniform():
            expected = [part * (ROWS / n) ** flow.power for part, n in zip(parts, rows, strict=True)]
            return all(one.shape == whole.shape and _close(one, whole) for one in expected)
        case Total():
            if any(part.shape != whole.shape for part in parts):
                return False
            return _close(sum(p * (ROWS / n) ** flow.power for p, n in zip(parts, rows, strict=True)), whole)
        case Apart():
            apart = [_by_row(flow, part, n) * (ROWS / n) ** flow.power for part, n in zip(parts, rows, strict=True)]
            return _close(np.concatenate(apart, axis=flow.axis + 1), _by_row(flow, whole, ROWS))
    raise AssertionError(flow)


def _by_row(flow: Apart, value: np.ndarray, rows: int) -> np.ndarray:
    """The value with its axis of rows split into (major, rows, minor)."""
    shape = value.shape
    return value.reshape(*shape[: flow.axis], flow.major, rows, flow.minor, *shape[flow.axis + 1 :])


def _close(a: Any, b: Any) -> bool:
    # Values are about 1: sums of values that cancel are off by the rounding of those.
    room = 1e-4 * float(np.max(np.abs(np.nan_to_num(np.asarray(b, float), posinf=0, neginf=0)), initial=0.1))
    a, b = np.asarray(a, float), np.asarray(b, float)
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=room, equal_nan=True))


def _evaluated(function: Any, names: list[str]) -> Any:
    """A function with the same arguments that returns these tensors."""
    graph_def = function.graph.as_graph_def()

    def evaluate(*arguments: Any) -> Any:
        given = {tensor.name: value for tensor, value in zip(function.inputs, arguments, strict=True)}
        return tf.graph_util.import_graph_def(graph_def, given, names, name="")

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in function.inputs]
    return tf.function(evaluate, autograph=False, input_signature=specs)


def _traced(compute: Callable[..., Any], shapes: tuple[tuple[int | None, ...], ...]) -> Any:
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    return tf.function(compute, autograph=False).get_concrete_function(*specs)


def _walked(function: Any, rows: int) -> Mapping[str, Flow]:
    graph = function.graph
    inputs = {tensor.op.name: tensor for tensor in function.inputs}
    settled = settle_shapes(graph.as_graph_def(), inputs, {}, rows)
    flows: dict[str, Flow] = {t.name: Apart(0) if t.shape[0] is None else Uniform() for t in function.inputs}
    walk = Walk(rows, ())
    for op in graph.get_operations():
        if not op.outputs or op.outputs[0].name in flows or op.outputs[0].name not in settled.tensors:
            continue
        made = settled.tensors[op.outputs[0].name].op
        inputs_of = [flows[tensor.name] for tensor in op.inputs]
        results = walk.flows(made, inputs_of, settled, op.name)
        flows.update(zip((tensor.name for tensor in op.outputs), results, strict=True))
    return flows
