"""Copies that convolutions on GPUs make of filters and images, counted by hand."""

from __future__ import annotations

import pytest

from cost_models.gpu_convolutions import convolution_copies_bytes
from cost_models.scratch import Kernels, scratch_bytes
from cost_models.specs import OpSpec, TensorSpec

IMAGES, FILTERS, OUTPUTS = (8, 28, 28, 16), (3, 3, 16, 32), (8, 28, 28, 32)
FILTER, IN, OUT = 3 * 3 * 16 * 32, 8 * 28 * 28 * 16, 8 * 28 * 28 * 32


def convolution(
    kind: str = "Conv2D",
    *,
    dtype: str = "float32",
    images: tuple[int, ...] = IMAGES,
    filters: tuple[int, ...] = FILTERS,
    data_format: str = "NHWC",
    step: int = 1,
) -> OpSpec:
    x, w, y, sizes = (TensorSpec(shape=shape, dtype=dtype) for shape in (images, filters, OUTPUTS, (4,)))
    inputs, output = {
        "Conv2D": ((x, w), y),
        "Conv2DBackpropInput": ((sizes, w, y), x),
        "Conv2DBackpropFilter": ((x, sizes, y), w),
    }[kind]
    attributes = {"data_format": data_format, "strides": (1, step, step, 1)}
    return OpSpec(type=kind, inputs=inputs, outputs=(output,), attributes=attributes)


@pytest.mark.parametrize("kind", ["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"])
@pytest.mark.parametrize(
    ("dtype", "capability", "item_bytes", "elements"),
    [
        ("float32", 7.5, 4, FILTER + IN + OUT),
        ("float32", 8.0, 4, FILTER),
        ("float16", 7.0, 2, FILTER),
        ("float16", 6.0, 2, FILTER + IN + OUT),
        ("bfloat16", 7.5, 2, FILTER + IN + OUT),
        ("float64", 9.0, 8, FILTER + IN + OUT),
        ("float32", 0.0, 4, FILTER + IN + OUT),
    ],
)
def test_images_are_copied_unless_tensor_cores_take_them_as_they_lie(
    kind: str, dtype: str, capability: float, item_bytes: int, elements: int
) -> None:
    assert convolution_copies_bytes(convolution(kind, dtype=dtype), capability) == item_bytes * elements


def test_with_channels_first_only_the_filter_is_copied() -> None:
    assert convolution_copies_bytes(convolution(data_format="NCHW"), 6.0) == 4 * FILTER


def test_images_of_one_channel_lie_in_both_layouts_at_once() -> None:
    gray = convolution(images=(8, 28, 28, 1), filters=(3, 3, 1, 32))
    assert convolution_copies_bytes(gray, 6.0) == 4 * (3 * 3 * 32 + OUT)


def test_a_convolution_by_one_place_is_a_product_and_copies_nothing() -> None:
    assert convolution_copies_bytes(convolution(filters=(1, 1, 16, 32)), 6.0) == 0
    assert convolution_copies_bytes(convolution(filters=(1, 1, 16, 32), step=2), 9.0) == 4 * 16 * 32


def test_only_kernels_of_gpus_copy() -> None:
    volta = Kernels(compute_capability=7.0)
    assert scratch_bytes(convolution(), "GPU", volta) == 4 * (FILTER + IN + OUT)
    assert scratch_bytes(convolution(), "CPU", volta) == 10 * 1024
    assert (
        convolution_copies_bytes(
            OpSpec(type="Relu", inputs=(), outputs=(TensorSpec(shape=(8,), dtype="float32"),)), 7.0
        )
        == 0
    )
