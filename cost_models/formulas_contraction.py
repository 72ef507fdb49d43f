"""Ops that multiply and sum: matrix products, einsum, convolutions, small linear algebra."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cost_models.registry import register, streamed
from cost_models.specs import OpCost, OpSpec, TensorSpec


@register("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(op: OpSpec) -> OpCost:
    """2 m n k per matrix; k is the other size of the first matrix with m rows, transposed or not."""
    a, product = op.inputs[0].shape, op.outputs[0]
    rows = product.shape[-2]
    depth = a[-2] * a[-1] // rows if rows else 0
    return streamed(op, 2 * product.num_elements * depth)


@register("Einsum")
def _einsum(op: OpSpec) -> OpCost:
    return streamed(op, einsum_flops(str(op.attributes["equation"]), [tensor.shape for tensor in op.inputs]))


def einsum_flops(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """FLOPs of an einsum of one or two operands, computed as TensorFlow does.

    Each operand is first reduced over the labels that only it has (an add per element); the rest of two operands is a
    batched matrix product: 2 FLOPs per combination of labels, 1 where no label is summed. A repeated label takes a
    diagonal, which costs nothing; an ellipsis stands for the dimensions without a label and broadcasts.

    Raises:
        ValueError: The equation does not fit the shapes, or has no `->`.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(shapes) or len(shapes) > 2:
        raise ValueError(f"the equation {equation!r} does not fit {len(shapes)} operands")
    operands = [_sizes(term, shape) for term, shape in zip(terms, shapes, strict=True)]
    ranks = [int(label[3:]) for operand in operands for label in operand if label.startswith("...")]
    output = set(right.replace("...", "")) | ({f"...{i}" for i in ranks} if "..." in right else set())

    flops, reduced = 0, []
    for index, operand in enumerate(operands):
        others = output.union(*(other for j, other in enumerate(operands) if j != index))
        kept = {label: size for label, size in operand.items() if label in others}
        flops += math.prod(operand.values()) if len(kept) < len(operand) else 0
        reduced.append(kept)
    if len(reduced) == 2:
        first, second = reduced
        labels = first.keys() | second.keys()
        # Where one operand broadcasts, the other has the larger size.
        combinations = math.prod(max(first.get(label, 0), second.get(label, 0)) for label in labels)
        flops += combinations * (1 if labels <= output else 2)
    return flops


def _sizes(term: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Size of each label; `...0` is the last dimension under an ellipsis, `...1` the second to last."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ValueError(f"{term!r} does not fit the shape {shape}")
    labels = [*before, *(f"...{hidden - 1 - i}" for i in range(hidden)), *after]
    return dict(zip(labels, shape, strict=True))


@register("Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative")
def _convolution(op: OpSpec) -> OpCost:
    return _convolved(op, kernel=op.inputs[1], result=op.outputs[0])


@register("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _convolution_of_input_gradient(op: OpSpec) -> OpCost:
    """Inputs are the sizes of the forward input, the kernel and the gradient of the forward result."""
    return _convolved(op, kernel=op.inputs[1], result=op.inputs[2])


@register("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def _convolution_of_kernel_gradient(op: OpSpec) -> OpCost:
    """Inputs are the forward input, the sizes of the kernel and the gradient of the forward result."""
    return _convolved(op, kernel=op.outputs[0], result=op.inputs[2])


def _convolved(op: OpSpec, *, kernel: TensorSpec, result: TensorSpec) -> OpCost:
    """A multiply-add per element of the forward result and kernel tap; both gradients pair the same elements.

    A kernel is (spatial..., in channels / groups, out channels) in either data format, and (height, width,
    channels, multiplier) when depthwise. Strides, dilation and padding show in the size of the result; taps
    on padding count.
    """
    is_depthwise = op.type.startswith("Depthwise")
    taps = math.prod(kernel.shape[:-2]) * (1 if is_depthwise else kernel.shape[-2])
    return streamed(op, 2 * result.num_elements * taps)


@register("MatrixInverse")
def _matrix_inverse(op: OpSpec) -> OpCost:
    """2 n^3 per matrix (Golub and Van Loan, Matrix Computations, section 3.4)."""
    return streamed(op, 2 * op.inputs[0].num_elements * op.inputs[0].shape[-1])


@register("Cholesky")
def _cholesky(op: OpSpec) -> OpCost:
    """n^3 / 3 per matrix (Golub and Van Loan, Matrix Computations, section 4.2)."""
    return streamed(op, op.inputs[0].num_elements * op.inputs[0].shape[-1] // 3)


@register("MatrixDeterminant", "LogMatrixDeterminant", "Lu")
def _elimination(op: OpSpec) -> OpCost:
    """2 n^3 / 3 per matrix (Golub and Van Loan, Matrix Computations, section 3.2)."""
    return streamed(op, 2 * op.inputs[0].num_elements * op.inputs[0].shape[-1] // 3)


@register("Qr")
def _qr(op: OpSpec) -> OpCost:
    """4 n^2 (m - n / 3) per matrix of m >= n, with Q (Golub and Van Loan, Matrix Computations, section 5.2)."""
    count, longer, shorter = _matrices(op)
    return streamed(op, count * 4 * shorter**2 * (3 * longer - shorter) // 3)


@register("Svd", "SelfAdjointEigV2")
def _singular_values(op: OpSpec) -> OpCost:
    """4 m^2 n + 8 m n^2 + 9 n^3 per matrix of m >= n (Golub and Van Loan, Matrix Computations, section 8.6)."""
    count, longer, shorter = _matrices(op)
    return streamed(op, count * (4 * longer**2 * shorter + 8 * longer * shorter**2 + 9 * shorter**3))


@register("SparseTensorDenseMatMul")
def _sparse_product(op: OpSpec) -> OpCost:
    """2 FLOPs per value that is there (second input) and column of the result."""
    return streamed(op, 2 * op.inputs[1].num_elements * op.outputs[0].shape[-1])


def _matrices(op: OpSpec) -> tuple[int, int, int]:
    """The number of matrices, and their longer and shorter side."""
    *batch, rows, columns = op.inputs[0].shape
    return math.prod(batch), max(rows, columns), min(rows, columns)


@register("MatrixTriangularSolve")
def _triangular_solve(op: OpSpec) -> OpCost:
    """n^2 per right-hand side (Golub and Van Loan, Matrix Computations, section 3.1)."""
    return streamed(op, op.outputs[0].num_elements * op.inputs[0].shape[-1])


@register("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
def _cudnn_rnn(op: OpSpec) -> OpCost:
    """2 FLOPs per parameter, row and time step: of a recurrent layer nearly all parameters are factors of products."""
    return streamed(op, _recurrent_flops(op))


@register("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3")
def _cudnn_rnn_gradient(op: OpSpec) -> OpCost:
    """Twice the forward pass: gradients of the inputs, and of the parameters."""
    return streamed(op, 2 * _recurrent_flops(op))


def _recurrent_flops(op: OpSpec) -> int:
    sequence, _, _, parameters, *_ = op.inputs
    steps, rows, *_ = sequence.shape
    return 2 * parameters.num_elements * steps * rows
