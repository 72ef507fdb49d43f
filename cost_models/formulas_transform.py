"""Fourier transforms, and the search for the bucket of a number."""

from __future__ import annotations

import math

from cost_models.registry import register, streamed
from cost_models.specs import OpCost, OpSpec

_AXES = {"FFT": 1, "FFT2D": 2, "FFT3D": 3}


@register("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
def _fourier(op: OpSpec) -> OpCost:
    """5 n log2 n per transform of n complex numbers (Van Loan, Computational Frameworks for the FFT, section 1.4)."""
    return streamed(op, 2 * _half_transform(op))


@register("RFFT", "RFFT2D", "RFFT3D", "IRFFT", "IRFFT2D", "IRFFT3D")
def _real_fourier(op: OpSpec) -> OpCost:
    """Half of a transform of complex numbers: that many real numbers make half as many."""
    return streamed(op, _half_transform(op))


@register("Bucketize")
def _bucketize(op: OpSpec) -> OpCost:
    """A binary search per element, 8 compares: graphs do not say how many boundaries there are, and 255 are many."""
    return streamed(op, 8 * op.inputs[0].num_elements)


def _half_transform(op: OpSpec) -> int:
    larger = max(op.inputs[0], op.outputs[0], key=lambda tensor: tensor.num_elements)
    length = math.prod(larger.shape[-_AXES[op.type.removeprefix("I").removeprefix("R")] :])
    return math.ceil(2.5 * larger.num_elements * math.log2(max(length, 1)))
