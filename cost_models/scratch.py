"""Scratch bytes of a kernel while it runs, besides its inputs and outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.gpu_convolutions import convolution_copies_bytes
from cost_models.specs import FunctionRun, OpSpec, TensorSpec

_ONEDNN_OPS = frozenset((
    "BatchMatMulV2", "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "DepthwiseConv2dNative", "Einsum",
    "FusedBatchNormV3", "MatMul",
))  # fmt: skip
# Scratchpads of oneDNN's primitives: 8,216 to 9,088 bytes were seen with TensorFlow 2.21 (float32, convolutions of 3 to
# 256 channels, products of up to 2,304 columns); convolutions on a CPU lay out no columns.
_ONEDNN_BYTES = 10 * 1024
# Buffer of the columns of images in TensorFlow's own kernels, and the work for which these start a thread.
_COLUMNS_BYTES = 30 << 20
_THREAD_BYTES = 256 << 10
# For these, 16-bit factors are converted to float32, and the float32 product is converted back.
_PRODUCTS = frozenset(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"))
_CONVERTED = frozenset(("bfloat16", "float16"))
_CONVERTED_BESIDE_ONEDNN = frozenset(("float16",))
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels that run the ops of a device.

    Attributes:
        onednn: Whether oneDNN's kernels run on a CPU where there are any; else TensorFlow's own, which are built on
            Eigen.
        intra_op_threads: Threads of an op of a CPU.
        inter_op_threads: Ops that run at a time on a CPU.
        compute_capability: Of a GPU; 0 if unknown.
        persistent_normalisation: Whether cuDNN may normalise batches in one pass over images as they lie, as
            TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=1 allows.
    """

    onednn: bool = True
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    compute_capability: float = 0.0
    persistent_normalisation: bool = False


ONEDNN = Kernels()


def scratch_bytes(op: OpSpec, device_type: str, kernels: Kernels = ONEDNN) -> int:
    """Bytes of scratch space of an op on a `CPU` or `GPU`; if it runs functions, the most of any run."""
    on_gpu = device_type == "GPU"
    kernel = convolution_copies_bytes(op, kernels.compute_capability) if on_gpu else _kernel_bytes(op, kernels)
    inside = max((_held_bytes(run, device_type, kernels) for run in op.runs if run.times), default=0)
    return kernel + inside + (_einsum_bytes(op) if op.type == "Einsum" else 0)


def _held_bytes(run: FunctionRun, device_type: str, kernels: Kernels) -> int:
    return run.held_bytes + max((scratch_bytes(op, device_type, kernels) for op in run.ops), default=0)


def _kernel_bytes(op: OpSpec, kernels: Kernels) -> int:
    if op.type == "Conv2DBackpropFilter" and (dense := _dense_filter_bytes(op)):
        return dense
    if op.type in _PRODUCTS and (converted := _converted_bytes(op, kernels)):
        return converted
    if kernels.onednn:
        return _ONEDNN_BYTES if op.type in _ONEDNN_OPS else 0
    if op.type == "Conv2DBackpropFilter":
        return _columns_bytes(op.outputs[0], op.inputs[2])
    if op.type == "Conv2DBackpropInput":
        return _columns_bytes(op.inputs[1], op.inputs[2], threads=kernels.intra_op_threads)
    return 0


def _converted_bytes(op: OpSpec, kernels: Kernels) -> int:
    """Copies in float32 of both factors and of the result of a product in 16 bits.

    oneDNN's kernels multiply bfloat16 themselves. We assume that they leave float16 to TensorFlow's own kernels, as on
    all processors without AVX512-FP16.

    Source: matmul_op_impl.h of TensorFlow (BaseBatchMatMulOp); mkl_util.h (IsDataTypeSupportedByOneDNNOnThisCPU).
    """
    tensors = (*op.inputs, *op.outputs)
    if any(tensor.dtype not in (_CONVERTED_BESIDE_ONEDNN if kernels.onednn else _CONVERTED) for tensor in tensors):
        return 0
    return sum(tensor.num_elements * _FLOAT32_BYTES for tensor in tensors)


def _dense_filter_bytes(op: OpSpec) -> int:
    """Bytes for the gradient of a filter with groups of channels; 0 with a single group.

    Keras compiles these by XLA, which on a CPU computes the filter from all channels to all channels, and copies the
    part within groups.

    Source: convolution_group_converter.cc of XLA (HandleBatchGroupCount); two buffers were seen with TensorFlow 2.21.
    """
    depth, depth_of_group = op.inputs[0].shape[-1], op.outputs[0].shape[-2]
    return 2 * op.outputs[0].size_bytes * depth // depth_of_group if depth != depth_of_group else 0


def _columns_bytes(filters: TensorSpec, outputs: TensorSpec, *, threads: int | None = None) -> int:
    """Bytes of the matrix of columns that turns a gradient of a convolution into a matrix product.

    It has room for as many images as fill 30 MiB with their columns, outputs and the filter, even where the batch has
    fewer. A gradient of inputs takes a single image at a time if that is the batch, or enough work for all `threads`.

    Source: conv_grad_filter_ops.cc and conv_grad_input_ops.h of TensorFlow (Conv2DCustomBackpropFilterOp and
    Conv2DCustomBackpropInputOp).

    Args:
        filters: Filters of the convolution: height, width, depth of inputs, depth of outputs.
        outputs: Outputs, or their gradient: images, height, width, depth.
        threads: Threads of an op; None for a gradient of filters.
    """
    *window, depth = filters.shape
    images, *area, _ = outputs.shape
    patch, places = math.prod(window), math.prod(area)
    work = places * patch + places * depth + patch * depth
    item_bytes = outputs.size_bytes // outputs.num_elements if outputs.num_elements else 0
    if not work or not item_bytes:
        return 0
    alone = threads is not None and (images == 1 or work // threads >= _THREAD_BYTES // item_bytes)
    at_once = 1 if alone else math.ceil(_COLUMNS_BYTES // item_bytes / work)
    return at_once * places * patch * item_bytes


def workspace_bytes(op: OpSpec, device_type: str, kernels: Kernels = ONEDNN) -> int:
    """Bytes that a pooling op keeps for its gradient: oneDNN's index of the largest element, a byte per output.

    Source: mkl_maxpooling_op.cc of TensorFlow (`AllocateWorkspaceTensor`, uint8).
    """
    leaves = op.type == "MaxPool" and device_type == "CPU" and kernels.onednn
    return op.outputs[0].num_elements if leaves else 0


def _einsum_bytes(op: OpSpec) -> int:
    """Copies of operands and of the product whose axes are not in the order of a batched matrix product.

    Source: linalg/einsum_op_impl.h of TensorFlow: an operand is transposed to (batch, free, summed) unless it is in
    this order, or has free and summed axes exchanged; the product is (batch, free, free).
    """
    left, _, output = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(op.inputs) or len(terms) != 2 or "..." in left:
        return sum(tensor.size_bytes for tensor in (*op.inputs, *op.outputs))
    shared = [label for label in terms[0] if label in terms[1]]
    batch = [label for label in shared if label in output]
    summed = [label for label in shared if label not in output]
    free = [[label for label in term if label not in shared and label in output] for term in terms]
    copied = 0
    for term, own, tensor in zip(terms, free, op.inputs, strict=True):
        orders = ([*batch, *own, *summed], [*batch, *summed, *own])
        copied += 0 if _in_order(term, tensor, orders) else tensor.size_bytes
    product = [*batch, *free[0], *free[1]]
    return copied + (0 if list(output) == product else op.outputs[0].size_bytes)


def _in_order(term: str, tensor: TensorSpec, orders: tuple[list[str], list[str]]) -> bool:
    """Whether axes longer than 1 are in either of these orders."""
    long = [label for label, size in zip(term, tensor.shape, strict=True) if size != 1]
    return any(long == [label for label in order if label in long] for order in orders)
