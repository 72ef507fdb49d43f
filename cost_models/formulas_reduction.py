"""Reductions and ops built on them: pooling, softmax, batch normalisation, top-k."""

from __future__ import annotations

import math

from cost_models.registry import register, streamed
from cost_models.specs import OpCost, OpSpec


@register("Sum", "Prod", "Max", "Min", "All", "Any")
def _reduction(op: OpSpec) -> OpCost:
    """Folding n elements into one takes n - 1 operations.

    Over no axis, or axes of size 1, the kernel passes its input on (ReductionHelper::Simplify in
    tensorflow/core/kernels/reduction_ops_common.cc). Gradients have many such sums, over axes that may be broadcast.
    """
    return OpCost() if _folds_nothing(op) else _fold(op)


@register("BiasAddGrad", "ArgMax", "ArgMin")
def _fold(op: OpSpec) -> OpCost:
    """As `_reduction`, but never skipped."""
    return streamed(op, max(op.inputs[0].num_elements - op.outputs[0].num_elements, 0))


@register("Mean")
def _mean(op: OpSpec) -> OpCost:
    """A sum, and a multiplication by 1 / n per result; over no axis, as a sum over no axis."""
    return OpCost() if _folds_nothing(op) else streamed(op, op.inputs[0].num_elements)


def _folds_nothing(op: OpSpec) -> bool:
    return op.inputs[0].num_elements == op.outputs[0].num_elements > 0


@register("EuclideanNorm")
def _euclidean_norm(op: OpSpec) -> OpCost:
    """A square per element, a sum, and a square root (4 FLOPs) per result."""
    elements, results = op.inputs[0].num_elements, op.outputs[0].num_elements
    return streamed(op, 2 * elements + 3 * results)


@register("Cumsum", "Cumprod", "Where", "Unique", "UniqueV2", "Bincount", "DenseBincount")
@register("SegmentSum", "SegmentSumV2", "SegmentMean", "SegmentMax", "SegmentMaxV2", "SegmentMin")
@register("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _per_element(op: OpSpec) -> OpCost:
    """A compare or add per element of the first input."""
    return streamed(op, op.inputs[0].num_elements)


@register("L2Loss")
def _l2_loss(op: OpSpec) -> OpCost:
    """sum(x * x) / 2"""
    return streamed(op, 2 * op.inputs[0].num_elements)


@register("TopK", "TopKV2", "InTopKV2")
def _top_k(op: OpSpec) -> OpCost:
    """A heap of k entries: about log2(k) compares per element, at least 1."""
    kept = op.outputs[0].shape[-1] if op.outputs[0].shape else 1
    return streamed(op, op.inputs[0].num_elements * max(math.ceil(math.log2(max(kept, 1))), 1))


@register("MaxPool", "MaxPoolV2", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax")
def _pool(op: OpSpec) -> OpCost:
    """A compare or add per element under each window."""
    results = op.outputs[0].num_elements
    return streamed(op, results * _window(op, op.inputs[0].num_elements, results))


@register("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad", "MaxPoolGradWithArgmax")
def _max_pool_grad(op: OpSpec) -> OpCost:
    """Inputs are the forward input, its result and the result's gradient: find the largest again, add to it."""
    results = op.inputs[2].num_elements
    return streamed(op, results * (_window(op, op.inputs[0].num_elements, results) + 1))


@register("AvgPoolGrad", "AvgPool3DGrad")
def _average_pool_grad(op: OpSpec) -> OpCost:
    """Inputs are the sizes of the forward input and the gradient of its result.

    Each element under a window gets the gradient divided by the window's size: a multiply-add.
    """
    results = op.inputs[1].num_elements
    return streamed(op, 2 * results * _window(op, op.outputs[0].num_elements, results))


@register("Dilation2D", "Dilation2DBackpropInput", "Dilation2DBackpropFilter")
def _dilation(op: OpSpec) -> OpCost:
    """The largest sum of an input and a filter element under each window: an add and a compare per tap.

    Inputs are the forward input, the filter (height, width, channels) and, in the backward op, the gradient of the
    result. The backward op finds the largest again and adds the gradient to it.
    """
    is_gradient = op.type != "Dilation2D"
    result = op.inputs[2] if is_gradient else op.outputs[0]
    return streamed(op, result.num_elements * (2 * math.prod(op.inputs[1].shape[:2]) + is_gradient))


def _window(op: OpSpec, elements: int, results: int) -> int:
    """Elements under a window: from `ksize`, or, where that is an input, as if windows did not overlap."""
    ksize = op.attributes.get("ksize")
    return math.prod(ksize) if isinstance(ksize, tuple) else -(-elements // max(results, 1))


# In the weights of formulas_elementwise: exp 8, divide 4, everything else 1.
@register("Softmax")
def _softmax(op: OpSpec) -> OpCost:
    """Per element: max, subtract, exp, sum, divide."""
    return streamed(op, (1 + 1 + 8 + 1 + 4) * op.outputs[0].num_elements)


@register("LogSoftmax")
def _log_softmax(op: OpSpec) -> OpCost:
    """Per element: max, subtract, exp, sum, subtract; per row: log."""
    return streamed(op, (1 + 1 + 8 + 1 + 1) * op.outputs[0].num_elements + 8 * _rows(op))


@register("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(op: OpSpec) -> OpCost:
    """Softmax, the loss sum(labels * (log(sum) - x)), the gradient softmax - labels; per row: log."""
    return streamed(op, (15 + 3 + 1) * op.inputs[0].num_elements + 8 * _rows(op))


@register("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(op: OpSpec) -> OpCost:
    """Softmax, which is the gradient except for its entry at the label; per row: log, and two subtractions."""
    return streamed(op, 15 * op.inputs[0].num_elements + (8 + 2) * _rows(op))


def _rows(op: OpSpec) -> int:
    return op.inputs[0].num_elements // max(op.inputs[0].shape[-1], 1)


@register("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(op: OpSpec) -> OpCost:
    """Per element: (x - mean) * factor + offset; in training also an add for the mean and 3 for the variance.

    Operations per channel are left out.
    """
    return streamed(op, (7 if _is_training(op) else 3) * op.inputs[0].num_elements)


@register("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def _batch_norm_grad(op: OpSpec) -> OpCost:
    """Per element: normalise x (2), add dy (1), multiply-add dy x (2), then factor * (dy - a - b x) (4).

    Ioffe and Szegedy, "Batch Normalization", ICML 2015, section 3; operations per channel are left out.
    Outside training the statistics are constants, so the last part is a multiplication.
    """
    return streamed(op, (9 if _is_training(op) else 6) * op.inputs[0].num_elements)


def _is_training(op: OpSpec) -> bool:
    return op.attributes.get("is_training", True) is not False
