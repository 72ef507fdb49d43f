"""Bytes that a convolution on a GPU copies its tensors to, for cuDNN's layouts.

TensorFlow gives cuDNN the filter with its outputs first, always as a copy. Where tensor cores compute in the layout
that images have in TensorFlow, they stay where they are; else they are copied to a layout with the channels first, and
so is the result. A convolution by 1 x 1 is a matrix product, and copies nothing.

cuDNN's own workspace does not count: TensorFlow takes an algorithm that needs less where memory is short.

Source: conv_ops_impl.h, conv_grad_input_ops.cc, conv_grad_filter_ops.cc and conv_ops_gpu.cc (ComputeInNhwcEnabled) of
TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.gpu_products import CONVOLUTIONS, tensors_of
from cost_models.specs import OpSpec, TensorSpec

_VOLTA, _AMPERE = 7.0, 8.0
# The first compute capability whose tensor cores take images as they lie in TensorFlow.
_FIRST_AS_THEY_LIE: Mapping[str, float] = {"float16": _VOLTA, "bfloat16": _AMPERE, "float32": _AMPERE}
_CHANNELS_FIRST = ("NCHW", "NCDHW")


def convolution_copies_bytes(op: OpSpec, compute_capability: float) -> int:
    """Bytes of the copies that a convolution or its gradient makes while it runs; 0 for other ops.

    Args:
        op: The op.
        compute_capability: Of the GPU; 0 if unknown, where images are taken to be copied.
    """
    if op.type not in CONVOLUTIONS:
        return 0
    read, filters, made = tensors_of(op)
    channels_first = op.attributes.get("data_format") in _CHANNELS_FIRST
    if not channels_first and _is_product(op, filters):
        return 0
    first = _FIRST_AS_THEY_LIE.get(filters.dtype)
    stay = channels_first or (first is not None and compute_capability >= first)
    copied = [] if stay else [tensor for tensor in (read, made) if tensor.shape[-1] > 1]
    return filters.size_bytes + sum(tensor.size_bytes for tensor in copied)


def _is_product(op: OpSpec, filters: TensorSpec) -> bool:
    """Whether every output is a product of one place of the input with the filter."""
    strides = op.attributes.get("strides")
    steps = strides if isinstance(strides, tuple) else ()
    return all(size == 1 for size in filters.shape[:-2]) and all(step == 1 for step in steps)
