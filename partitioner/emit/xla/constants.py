"""Which tensors XLA must know when it compiles: shapes, axes, sizes; they are constants of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partitioner.gpu_kernels import op_signature
from partitioner.ir.graph_def import producer, tensor_name
from partitioner.ir.sizes import READS_SHAPE
from partitioner.xla_kernels import called_functions

# By op type, the inputs that XLA compiles in. Source: CompileTimeConstantInput in tensorflow/compiler/tf2xla/kernels of
# TensorFlow 2.21.
_INPUTS = """
All reduction_indices; Any reduction_indices; ArgMax dimension; ArgMin dimension; AvgPool3DGrad orig_input_shape;
AvgPoolGrad orig_input_shape; BatchToSpace crops; BatchToSpaceND block_shape crops; Bincount size; BroadcastArgs s0
s1; BroadcastGradientArgs s0 s1; BroadcastTo shape; Concat concat_dim; ConcatOffset concat_dim shape; ConcatV2 axis;
ConjugateTranspose perm; Conv2DBackpropFilter filter_sizes; Conv2DBackpropInput input_sizes; Conv3DBackpropFilterV2
filter_sizes; Conv3DBackpropInputV2 input_sizes; Cumprod axis; Cumsum axis; CumulativeLogsumexp axis; DenseBincount
size; DepthwiseConv2dNativeBackpropFilter filter_sizes; DepthwiseConv2dNativeBackpropInput input_sizes;
DynamicStitch indices; Empty shape; EmptyTensorList element_shape max_num_elements; EuclideanNorm reduction_indices;
ExpandDims dim; Fill dims; GatherV2 axis; LinSpace start stop num; MatrixDiagPartV2 k; MatrixDiagPartV3 k;
MatrixDiagV2 k num_rows num_cols padding_value; MatrixDiagV3 k num_rows num_cols padding_value; MatrixSetDiagV2 k;
MatrixSetDiagV3 k; Max reduction_indices; MaxPoolGradV2 ksize strides; MaxPoolV2 ksize strides; Mean
reduction_indices; Min reduction_indices; MirrorPad paddings; MirrorPadGrad paddings; Multinomial num_samples;
OneHot depth; Pad paddings; PadV2 paddings; ParallelDynamicStitch indices; ParameterizedTruncatedNormal shape; Prod
reduction_indices; RandomStandardNormal shape; RandomUniform shape; RandomUniformInt shape; Range start limit delta;
Reshape shape; ResizeBilinear size; ResizeNearestNeighbor size; Reverse dims; ReverseV2 axis; RngReadAndSkip alg;
RngSkip algorithm; Roll axis; ScatterNd shape; SegmentMaxV2 num_segments; SegmentMinV2 num_segments; SegmentProdV2
num_segments; SegmentSumV2 num_segments; Slice begin size; SpaceToBatch paddings; SpaceToBatchND block_shape
paddings; Split split_dim; SplitV size_splits split_dim; StatefulStandardNormalV2 algorithm shape; StatefulUniform
algorithm shape; StatelessMultinomial num_samples; StatelessRandomNormal shape; StatelessRandomNormalV2 shape alg;
StatelessRandomUniform shape; StatelessRandomUniformFullInt shape; StatelessRandomUniformFullIntV2 shape alg;
StatelessRandomUniformInt shape; StatelessRandomUniformIntV2 shape alg; StatelessRandomUniformV2 shape alg;
StatelessTruncatedNormal shape; StatelessTruncatedNormalV2 shape alg; StridedSlice begin end strides;
StridedSliceGrad shape begin end strides; Sum reduction_indices; TensorListReserve element_shape num_elements;
TensorStridedSliceUpdate begin end strides; Tile multiples; TopKV2 k; Transpose perm; TruncatedNormal shape;
UnsortedSegmentMax num_segments; UnsortedSegmentMin num_segments; UnsortedSegmentProd num_segments;
UnsortedSegmentSum num_segments;
"""
_CONSTANT_INPUTS: Mapping[str, frozenset[str]] = {
    words[0]: frozenset(words[1:]) for entry in _INPUTS.split(";") if (words := entry.split())
}


def needed_as_constants(nodes: Iterable[Any], functions: Mapping[str, Any]) -> frozenset[str]:
    """The tensors among the nodes and their inputs whose values XLA compiles into the program.

    Args:
        nodes: NodeDefs that are compiled together.
        functions: The function library, FunctionDefs by name.
    """
    return frozenset(map(tensor_name, _wanted(nodes, functions)))


def _wanted(nodes: Iterable[Any], functions: Mapping[str, Any]) -> set[str]:
    """What must be a constant, as nodes refer to it: the inputs that must, and all that these are made of."""
    reads = {node.name: [read for read in node.input if not read.startswith("^")] for node in nodes}
    makers = {node.name: node for node in nodes}
    stack = [
        reads[node.name][index]
        for node in makers.values()
        for index in _constant_inputs(node, functions)
        if index < len(reads[node.name])
    ]
    wanted: set[str] = set()
    while stack:
        read = stack.pop()
        if read not in wanted:
            wanted.add(read)
            maker = makers.get(producer(read))
            if maker is not None and maker.op not in READS_SHAPE:
                stack.extend(reads[maker.name])
    return wanted


def _constant_inputs(node: Any, functions: Mapping[str, Any]) -> Iterable[int]:
    """Indices of the inputs of a node that must be constants."""
    called = [name for name in called_functions(node) if name in functions]
    if called:
        shift = 1 if node.op in ("If", "StatelessIf", "Case", "StatelessCase") else 0
        return {index + shift for name in called for index in constant_arguments(functions[name], functions)}
    names = _CONSTANT_INPUTS.get(node.op)
    if not names:
        return ()
    signature = op_signature(node.op)
    indices, position = set[int](), 0
    for argument in signature.input_arg:
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        if argument.type_list_attr:
            count = len(node.attr[argument.type_list_attr].list.type)
        if argument.name in names:
            indices.update(range(position, position + count))
        position += count
    return indices


def constant_arguments(function: Any, functions: Mapping[str, Any]) -> set[int]:
    """Indices of a function's arguments that must be constants."""
    wanted = _wanted(list(function.node_def), functions)
    return {index for index, argument in enumerate(function.signature.input_arg) if argument.name in wanted}
