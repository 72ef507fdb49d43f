"""Matrix products and convolutions on GPUs: which matrices they multiply, and how long that takes in tiles.

A convolution is computed as a product without writing its matrix of patches down (an implicit product). A product is
cut into tiles, one a multiprocessor at a time, so that its last wave may leave multiprocessors idle; a long sum with
few tiles is cut too.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" and "Convolutional Layers User's Guide" (tiles, waves,
multiples of 8 in 16 bits); CUTLASS documentation, "Efficient GEMM in CUDA" (split-K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.hardware import Device
from cost_models.specs import OpSpec, TensorSpec

_MATRIX_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_FORWARD = ("Conv2D", "Conv3D")
_OF_INPUT = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_OF_FILTER = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
CONVOLUTIONS = frozenset((*_FORWARD, *_OF_INPUT, *_OF_FILTER))

# Tiles of cuBLAS and cuDNN, the largest first: rows, columns.
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32))
# Elements of an edge at which half of a multiprocessor's rate is left, because each loaded element serves fewer
# multiplications: on-chip memory of a V100 (128 bytes a cycle) feeds 512 multiply-adds of 16 bits a cycle.
_HALF_RATE_EDGE = 16
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SUM_BYTES = 4  # of a partial sum, in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`count` products of a matrix of rows x depth with a matrix of depth x columns."""

    rows: int
    columns: int
    depth: int
    count: int = 1


def product_of(op: OpSpec) -> Product | None:
    """The product that an op is on a GPU; None for ops that are none, and for depthwise convolutions."""
    if op.type in _MATRIX_PRODUCTS:
        a, made = op.inputs[0].shape, op.outputs[0].shape
        rows = made[-2]
        depth = a[-2] * a[-1] // rows if rows else 0
        return Product(rows=rows, columns=made[-1], depth=depth, count=math.prod(made[:-2]))
    if op.type == "Einsum":
        return _einsum(op)
    if op.type in CONVOLUTIONS:
        return _convolution(op)
    return None


def _einsum(op: OpSpec) -> Product | None:
    """Labels of both operands are summed or count products; the others are rows or columns."""
    left, _, right = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or len(op.inputs) != 2 or "." in left:
        return None
    sizes = {
        label: size
        for term, tensor in zip(terms, op.inputs, strict=True)
        for label, size in zip(term, tensor.shape, strict=True)
    }
    shared = set(terms[0]) & set(terms[1])

    def volume(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    return Product(
        rows=volume((set(terms[0]) - shared) & set(right)),
        columns=volume((set(terms[1]) - shared) & set(right)),
        depth=volume(shared - set(right)),
        count=volume(shared & set(right)),
    )


def tensors_of(op: OpSpec) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Of a convolution or its gradient: the images that go in, the filter, the images that come out."""
    if op.type in _FORWARD:
        return op.inputs[0], op.inputs[1], op.outputs[0]
    if op.type in _OF_INPUT:
        return op.outputs[0], op.inputs[1], op.inputs[2]
    return op.inputs[0], op.outputs[0], op.inputs[2]


def _convolution(op: OpSpec) -> Product:
    images, filters, results = tensors_of(op)
    channels_last = op.attributes.get("data_format") not in ("NCHW", "NCDHW")
    channels = images.shape[-1 if channels_last else 1]
    *window, depth, outputs = filters.shape
    groups = max(channels // max(depth, 1), 1)
    taps = math.prod(window)
    places = results.num_elements // max(outputs, 1)
    if op.type in _FORWARD:
        return Product(rows=places, columns=outputs // groups, depth=taps * depth, count=groups)
    if op.type in _OF_FILTER:
        return Product(rows=outputs // groups, columns=taps * depth, depth=places, count=groups)
    from_places = images.num_elements // max(channels, 1)
    # Of a strided convolution each place of the input has its share of the taps.
    share = max(math.ceil(taps * outputs / groups * places / max(from_places, 1)), 1)
    return Product(rows=from_places, columns=depth, depth=share, count=groups)


def product_seconds(product: Product, device: Device, dtype: str, constants: GpuConstants = GPU) -> float:
    """Seconds to compute a product on a GPU, without its launch; of the tiles that are fastest.

    Args:
        product: The product.
        device: A GPU with a known number of multiprocessors.
        dtype: Of its factors.
        constants: Shares of peaks.
    """
    peak, plain = device.peak_flops_for(dtype), device.peak_flops["float32"]
    on_tensor_cores = dtype != "float64" and peak > plain
    rate = peak * (constants.tensor_core_share if on_tensor_cores else constants.cuda_core_share)
    multiple = _multiple(dtype) if on_tensor_cores else 1
    rows, columns, depth = (-(-size // multiple) * multiple for size in (product.rows, product.columns, product.depth))
    most = device.memory_bandwidth_bytes_per_second * constants.bandwidth_share
    best = math.inf
    for tile_rows, tile_columns in _TILES:
        tiles = product.count * -(-rows // tile_rows) * -(-columns // tile_columns)
        edge = _HALF_RATE_EDGE * (1 / tile_rows + 1 / tile_columns) / 2
        tile_rate = rate / device.multiprocessors / (1 + edge) * (1 + _HALF_RATE_EDGE * (1 / 128 + 1 / 256) / 2)
        for parts in _SPLITS:
            waves = -(-tiles * parts // device.multiprocessors)
            flops = 2 * tile_rows * tile_columns * (-(-depth // parts) + constants.start_depth)
            added = 2 * parts * product.count * rows * columns * _SUM_BYTES if parts > 1 else 0
            best = min(best, waves * flops / tile_rate + added / most)
    return best


def _multiple(dtype: str) -> int:
    """What tensor cores take of each size: 16 bytes (NVIDIA, "Matrix Multiplication Background User's Guide")."""
    return {"float32": 4, "float16": 8, "bfloat16": 8}.get(dtype, 16)
