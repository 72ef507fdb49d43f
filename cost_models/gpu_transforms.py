"""Convolutions that cuDNN computes on transformed images, with fewer multiplications: float32 without tensor cores.

An image is cut into pieces that overlap, which are transformed, multiplied with the transformed filter (a matrix
product over the channels for each element of a piece), and transformed back. Transforms and products are kernels of
their own, so pieces go through memory between them, unless they are small and the filter is of 3 x 3 taps.

    Winograd   4 x 4, 16 products, in one kernel: a piece gives 2 x 2 results with 16 multiplications in place of 36
    Winograd   6 x 6, 36 products: a piece gives 4 x 4 results with 36 multiplications in place of 144
    Fourier    32 x 32, 32 x 17 products of complex numbers, of 4 multiplications each: for more taps

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016; Vasilache et al., "Fast
Convolutional Nets With fbfft", ICLR 2015; cuDNN developer guide (CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, which has no
gradient of filters, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED and CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING: windows
that are moved by one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_products import CONVOLUTIONS, Product, product_seconds, tensors_of
from cost_models.hardware import Device
from cost_models.specs import OpSpec, TensorSpec

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transform:
    """A transform of pieces.

    Attributes:
        side: Of a piece, in elements.
        products: Elements of a transformed piece.
        factor: Real multiplications of a product of two elements.
        floats: Real numbers of an element.
        windows: Sides of windows that it is used for.
        in_one_kernel: Whether pieces never go through memory; then there is no gradient of filters.
    """

    side: int
    products: int
    factor: int
    floats: int
    windows: tuple[int, ...]
    in_one_kernel: bool = False


_TRANSFORMS = (
    _Transform(side=4, products=16, factor=1, floats=1, windows=(3,), in_one_kernel=True),
    _Transform(side=6, products=36, factor=1, floats=1, windows=(3, 5)),
    _Transform(side=32, products=32 * 17, factor=4, floats=2, windows=(3, 5, 7, 9, 11)),
)


def transformed_seconds(op: OpSpec, device: Device, constants: GpuConstants = GPU) -> float:
    """Seconds of a convolution or its gradient by the faster transform, launches aside; infinite where there is none.

    Args:
        op: The op.
        device: A GPU with a known number of multiprocessors.
        constants: Shares of peaks.
    """
    if not _applies(op, device):
        return math.inf
    images, filters, results = tensors_of(op)
    window = filters.shape[0]
    return min(
        (
            _seconds(op, transform, images, filters, results, device, constants)
            for transform in _TRANSFORMS
            if window in transform.windows and not (transform.in_one_kernel and op.type == "Conv2DBackpropFilter")
        ),
        default=math.inf,
    )


def _seconds(
    op: OpSpec,
    transform: _Transform,
    images: TensorSpec,
    filters: TensorSpec,
    results: TensorSpec,
    device: Device,
    constants: GpuConstants,
) -> float:
    window, _, depth, outputs = filters.shape
    height, width = results.shape[2:4] if op.attributes.get("data_format") == "NCHW" else results.shape[1:3]
    step = transform.side + 1 - window
    pieces = results.shape[0] * -(-height // step) * -(-width // step)
    rows, columns, summed = (depth, outputs, pieces) if "Filter" in op.type else (pieces, outputs, depth)
    product = Product(rows=rows, columns=columns, depth=summed, count=transform.products)
    # Images, results and filters are read or written as they are, and written and read in pieces.
    transformed = (pieces * (depth + outputs) + depth * outputs) * transform.products * transform.floats
    multiplying = transform.factor * product_seconds(product, device, "float32", constants)
    bandwidth = device.memory_bandwidth_bytes_per_second * constants.bandwidth_share
    moved = images.size_bytes + results.size_bytes + filters.size_bytes
    if transform.in_one_kernel:
        return max(moved / bandwidth, multiplying)
    return (moved + 2 * transformed * _FLOAT_BYTES) / bandwidth + multiplying


def _applies(op: OpSpec, device: Device) -> bool:
    if op.type not in CONVOLUTIONS or "3D" in op.type or op.compute_dtype != "float32":
        return False
    if device.peak_flops.get("tfloat32", 0.0) > device.peak_flops["float32"]:
        return False
    images, filters, _ = tensors_of(op)
    channels = images.shape[1 if op.attributes.get("data_format") == "NCHW" else -1]
    steps = [op.attributes.get(name, ()) for name in ("strides", "dilations")]
    moved_by_one = all(size == 1 for sizes in steps if isinstance(sizes, tuple) for size in sizes)
    return filters.shape[0] == filters.shape[1] and moved_by_one and channels == filters.shape[2]
