"""Bytes that a kernel takes for itself while it runs, besides its inputs and outputs."""

from __future__ import annotations

from cost_models.specs import FunctionRun, OpSpec, TensorSpec

_ONEDNN_OPS = frozenset((
    "BatchMatMulV2", "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "DepthwiseConv2dNative", "Einsum",
    "FusedBatchNormV3", "MatMul",
))  # fmt: skip
# Scratchpads of oneDNN's primitives: 8,216 to 9,088 bytes were seen with TensorFlow 2.21 (float32, convolutions of 3 to
# 256 channels, products of up to 2,304 columns); convolutions on a CPU lay out no columns.
_ONEDNN_BYTES = 10 * 1024


def scratch_bytes(op: OpSpec, device_type: str) -> int:
    """Bytes of scratch space of one op on a `CPU` or `GPU`; for one that runs functions, of the run that takes most."""
    kernel = _ONEDNN_BYTES if device_type == "CPU" and op.type in _ONEDNN_OPS else 0
    inside = max((_held_bytes(run, device_type) for run in op.runs if run.times), default=0)
    return kernel + inside + (_einsum_bytes(op) if op.type == "Einsum" else 0)


def _held_bytes(run: FunctionRun, device_type: str) -> int:
    return run.held_bytes + max((scratch_bytes(op, device_type) for op in run.ops), default=0)


def workspace_bytes(op: OpSpec, device_type: str) -> int:
    """Bytes that a pooling op leaves for its gradient: oneDNN's index of the largest element, one byte per output.

    Source: mkl_maxpooling_op.cc of TensorFlow (`AllocateWorkspaceTensor`, uint8).
    """
    return op.outputs[0].num_elements if op.type == "MaxPool" and device_type == "CPU" else 0


def _einsum_bytes(op: OpSpec) -> int:
    """Copies of operands whose axes are not in the order that a batched product takes, and of a product that is not.

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
    """Whether axes longer than one are in one of these orders."""
    long = [label for label, size in zip(term, tensor.shape, strict=True) if size != 1]
    return any(long == [label for label in order if label in long] for order in orders)
