"""Which int32 inputs XLA compiles in: the list of `constants` against the programs that XLA makes.

XLA takes an input as a parameter of its program, or it knows it as a constant; the text of the program tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from partitioner.emit.xla.constants import needed_as_constants

_RAW = tf.raw_ops
_MATRIX, _SQUARE = np.ones((4, 6), np.float32), np.ones((3, 3), np.float32)
_IMAGE, _FILTER = np.ones((1, 4, 4, 2), np.float32), np.ones((3, 3, 2, 2), np.float32)
_KEY = {"key": np.array([1], np.uint64), "counter": np.array([1, 2], np.uint64)}
_CONV = {"strides": [1, 1, 1, 1], "padding": "SAME"}


def ints(*values: Any) -> np.ndarray:
    """An int32 array; of one number, a scalar."""
    return np.array(values[0] if len(values) == 1 else values, np.int32)


def _of_values(op: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The op with a list of tensors given as `a` and `b`."""
    return lambda a, b, **rest: op(**{names[0]: [a, b]}, **rest)


CASES: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "Reshape": (_RAW.Reshape, {"tensor": _MATRIX, "shape": ints(6, 4)}),
    "BroadcastTo": (_RAW.BroadcastTo, {"input": _MATRIX, "shape": ints(2, 4, 6)}),
    "Tile": (_RAW.Tile, {"input": _MATRIX, "multiples": ints(2, 1)}),
    "Transpose": (_RAW.Transpose, {"x": _MATRIX, "perm": ints(1, 0)}),
    "Sum": (_RAW.Sum, {"input": _MATRIX, "axis": ints([0])}),
    "Mean": (_RAW.Mean, {"input": _MATRIX, "axis": ints([0])}),
    "ConcatV2": (_of_values(_RAW.ConcatV2, "values"), {"a": _MATRIX, "b": _MATRIX, "axis": ints(0)}),
    "Slice": (_RAW.Slice, {"input": _MATRIX, "begin": ints(0, 1), "size": ints(2, 2)}),
    "StridedSlice": (
        _RAW.StridedSlice,
        {"input": _MATRIX, "begin": ints(0, 1), "end": ints(2, 3), "strides": ints(1, 1)},
    ),
    "StridedSliceGrad": (
        _RAW.StridedSliceGrad,
        {"shape": ints(4, 6), "begin": ints(0, 1), "end": ints(2, 3), "strides": ints(1, 1),
         "dy": np.ones((2, 2), np.float32)},
    ),
    "Pad": (_RAW.Pad, {"input": _MATRIX, "paddings": ints([[1, 1], [0, 0]])}),
    "MirrorPad": (_RAW.MirrorPad, {"input": _MATRIX, "paddings": ints([[1, 1], [0, 0]]), "mode": "REFLECT"}),
    "Fill": (_RAW.Fill, {"dims": ints(2, 3), "value": 1.0}),
    "Range": (_RAW.Range, {"start": ints(0), "limit": ints(5), "delta": ints(1)}),
    "OneHot": (_RAW.OneHot, {"indices": ints(1, 2), "depth": ints(5), "on_value": 1.0, "off_value": 0.0}),
    "GatherV2": (_RAW.GatherV2, {"params": _MATRIX, "indices": ints(1, 2), "axis": ints(0)}),
    "GatherNd": (_RAW.GatherNd, {"params": _MATRIX, "indices": ints([[0, 1]])}),
    "Split": (_RAW.Split, {"axis": ints(0), "value": _MATRIX, "num_split": 2}),
    "SplitV": (_RAW.SplitV, {"value": _MATRIX, "size_splits": ints(2, 4), "axis": ints(1), "num_split": 2}),
    "ExpandDims": (_RAW.ExpandDims, {"input": _MATRIX, "axis": ints(0)}),
    "ArgMax": (_RAW.ArgMax, {"input": _MATRIX, "dimension": ints(0)}),
    "Conv2DBackpropInput": (
        _RAW.Conv2DBackpropInput,
        {"input_sizes": ints(1, 4, 4, 2), "filter": _FILTER, "out_backprop": _IMAGE, **_CONV},
    ),
    "Conv2DBackpropFilter": (
        _RAW.Conv2DBackpropFilter,
        {"input": _IMAGE, "filter_sizes": ints(3, 3, 2, 2), "out_backprop": _IMAGE, **_CONV},
    ),
    "AvgPoolGrad": (
        _RAW.AvgPoolGrad,
        {"orig_input_shape": ints(1, 4, 4, 2), "grad": np.ones((1, 2, 2, 2), np.float32), "ksize": [1, 2, 2, 1],
         "strides": [1, 2, 2, 1], "padding": "VALID"},
    ),
    "UnsortedSegmentSum": (
        _RAW.UnsortedSegmentSum,
        {"data": _MATRIX, "segment_ids": ints(0, 1, 1, 0), "num_segments": ints(3)},
    ),
    "SegmentSumV2": (_RAW.SegmentSumV2, {"data": _MATRIX, "segment_ids": ints(0, 1, 1, 2), "num_segments": ints(3)}),
    "ReverseV2": (_RAW.ReverseV2, {"tensor": _MATRIX, "axis": ints([0])}),
    "Roll": (_RAW.Roll, {"input": _MATRIX, "shift": ints(1), "axis": ints(0)}),
    "Cumsum": (_RAW.Cumsum, {"x": _MATRIX, "axis": ints(0)}),
    "TopKV2": (_RAW.TopKV2, {"input": _MATRIX, "k": ints(2)}),
    "BroadcastGradientArgs": (_RAW.BroadcastGradientArgs, {"s0": ints(4, 6), "s1": ints([6])}),
    "StatelessRandomUniformV2": (_RAW.StatelessRandomUniformV2, {"shape": ints(2, 3), "alg": ints(1), **_KEY}),
    "StatelessRandomNormalV2": (_RAW.StatelessRandomNormalV2, {"shape": ints(2, 3), "alg": ints(1), **_KEY}),
    "StatelessRandomUniform": (_RAW.StatelessRandomUniform, {"shape": ints(2, 3), "seed": ints(1, 2)}),
    "StatelessRandomGetKeyCounter": (_RAW.StatelessRandomGetKeyCounter, {"seed": ints(1, 2)}),
    "ResizeBilinear": (_RAW.ResizeBilinear, {"images": _IMAGE, "size": ints(8, 8)}),
    "LinSpace": (_RAW.LinSpace, {"start": np.float32(0), "stop": np.float32(1), "num": ints(4)}),
    "ScatterNd": (
        _RAW.ScatterNd,
        {"indices": ints([[0], [1]]), "updates": np.ones((2, 3), np.float32), "shape": ints(4, 3)},
    ),
    "SpaceToBatchND": (
        _RAW.SpaceToBatchND,
        {"input": _IMAGE, "block_shape": ints(2, 2), "paddings": ints([[0, 0], [0, 0]])},
    ),
    "InvertPermutation": (_RAW.InvertPermutation, {"x": ints(1, 0)}),
    "MatrixBandPart": (_RAW.MatrixBandPart, {"input": _SQUARE, "num_lower": ints(1), "num_upper": ints(1)}),
    "MatrixSetDiagV3": (_RAW.MatrixSetDiagV3, {"input": _SQUARE, "diagonal": np.ones(3, np.float32), "k": ints(0)}),
    "TensorScatterUpdate": (
        _RAW.TensorScatterUpdate,
        {"tensor": _MATRIX, "indices": ints([[0]]), "updates": np.ones((1, 6), np.float32)},
    ),
    "SparseSoftmaxCrossEntropyWithLogits": (
        _RAW.SparseSoftmaxCrossEntropyWithLogits,
        {"features": _MATRIX, "labels": ints(0, 1, 2, 3)},
    ),
    "DenseBincount": (
        _RAW.DenseBincount,
        {"input": ints(0, 1, 1), "size": ints(3), "weights": np.ones(3, np.float32)},
    ),
}  # fmt: skip


def _inputs() -> list[tuple[str, str]]:
    return [
        (op, name)
        for op, (_, arguments) in CASES.items()
        for name, value in arguments.items()
        if isinstance(value, np.ndarray) and value.dtype == np.int32
    ]


@pytest.mark.parametrize(("op", "name"), _inputs())
def test_an_input_is_a_constant_where_xla_compiles_it_in(op: str, name: str) -> None:
    call, arguments = CASES[op]
    others = {key: value for key, value in arguments.items() if key != name}
    function = tf.function(lambda value: call(**others, **{name: value}), jit_compile=True, autograph=False)
    value = tf.constant(arguments[name])
    program = function.experimental_get_compiler_ir(value)(stage="hlo")
    is_parameter = re.search(r"parameter\(0\)", program[program.index("ENTRY") :]) is not None
    graph_def = function.get_concrete_function(value).graph.as_graph_def()
    argument = next(node.name for node in graph_def.node if node.op == "Placeholder")
    assert (f"{argument}:0" in needed_as_constants(graph_def.node, {})) is not is_parameter


def test_what_a_constant_is_made_of_is_one_too() -> None:
    """A shape that is computed, and one that is read off a tensor, which may hold anything."""

    def reshaped(x: Any, rows: Any) -> Any:
        return tf.reshape(x, tf.stack([rows * 2, tf.shape(x)[0]]))

    specs = [tf.TensorSpec([None, None]), tf.TensorSpec([], tf.int32)]
    graph_def = tf.function(reshaped).get_concrete_function(*specs).graph.as_graph_def()
    needed = needed_as_constants(graph_def.node, {})
    assert {"rows:0", "mul:0"} <= needed
    assert "x:0" not in needed


def test_constants_inside_of_loops_and_branches() -> None:
    def looped(x: Any, width: Any, start: Any) -> Any:
        def body(index: Any, value: Any) -> Any:
            return index + 1, tf.ensure_shape(tf.reshape(value, [width, -1]), [4, 4])

        return tf.while_loop(lambda index, _: index < 3, body, [start, x])[1]

    specs = [tf.TensorSpec([4, 4]), tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)]
    graph_def = tf.function(looped).get_concrete_function(*specs).graph.as_graph_def()
    functions = {function.signature.name: function for function in graph_def.library.function}
    needed = needed_as_constants(graph_def.node, functions)
    assert "width:0" in needed
    assert "x:0" not in needed
