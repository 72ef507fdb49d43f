"""Seconds of ops on GPUs, counted by hand: tiles and waves, transforms, bytes, and what never gets faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalogue import catalogue
from cost_models.flops import op_cost
from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_products import Product, product_of, product_seconds
from cost_models.gpu_seconds import (
    fused_seconds,
    gpu_op_seconds,
    is_on_host,
    layout_bytes,
    normalisation_bytes,
    queued_seconds,
)
from cost_models.gpu_transforms import transformed_seconds
from cost_models.hardware import Device
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpSpec, TensorSpec

# All of a peak, and nothing to start a tile.
IDEAL = GpuConstants(
    tensor_core_share=1.0, cuda_core_share=1.0, bandwidth_share=1.0, depthwise_share=0.5, start_depth=0.0, sum_share=1.0
)
TOY = Device(
    name="toy",
    title="Toy",
    peak_flops={"float32": 4e6},
    memory_bytes=2**40,
    memory_bandwidth_bytes_per_second=1e12,
    launch_overhead_seconds=0.25,
    multiprocessors=4,
    source="a test",
    date="2026-11",
)
TILE = 2 * 256 * 128 * 1000 / 1e6  # seconds of a tile of 256 x 128 x 1000 on one of the four multiprocessors


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def convolution(kind: str, images: TensorSpec, filters: TensorSpec, results: TensorSpec, stride: int = 1) -> OpSpec:
    attributes = {"strides": (1, stride, stride, 1), "data_format": "NHWC"}
    sizes = tensor(4, dtype="int32")
    if kind == "Conv2D":
        return OpSpec(type=kind, inputs=(images, filters), outputs=(results,), attributes=attributes)
    if kind == "Conv2DBackpropInput":
        return OpSpec(type=kind, inputs=(sizes, filters, results), outputs=(images,), attributes=attributes)
    return OpSpec(type=kind, inputs=(images, sizes, results), outputs=(filters,), attributes=attributes)


def seconds(op: OpSpec, device: Device = TOY, *, compiled: bool = False, constants: GpuConstants = IDEAL) -> float:
    return gpu_op_seconds(op, op_cost(op), device, compiled=compiled, constants=constants)


def test_four_tiles_fill_four_multiprocessors_once():
    assert product_seconds(Product(rows=1024, columns=128, depth=1000), TOY, "float32", IDEAL) == pytest.approx(TILE)


def test_a_tile_more_takes_another_wave_unless_it_is_cut():
    """1,280 rows are five tiles of 256 x 128: in two waves, or, each in four parts, in five waves of a quarter."""
    found = product_seconds(Product(rows=1280, columns=128, depth=1000), TOY, "float32", IDEAL)
    added = 2 * 4 * 1280 * 128 * 4 / 1e12
    assert found == pytest.approx(5 / 4 * TILE + added, rel=1e-6)
    short = product_seconds(Product(rows=1280, columns=128, depth=1), TOY, "float32", replace(IDEAL, start_depth=999))
    assert short == pytest.approx(5 / 4 * 1.1875 / 1.09375 * TILE)  # tiles of 64 x 128: a quarter, and slower by edges


def test_a_long_sum_is_cut_so_that_all_multiprocessors_work():
    """One tile in four parts of a quarter each; partial sums go to memory and back."""
    added = 2 * 4 * 256 * 128 * 4 / 1e12
    found = product_seconds(Product(rows=256, columns=128, depth=1000), TOY, "float32", IDEAL)
    assert found == pytest.approx(TILE / 4 + added, rel=1e-6)


def test_tensor_cores_take_multiples_of_sixteen_bytes():
    device = replace(TOY, peak_flops={"float32": 4e6, "float16": 8e6})
    of = [product_seconds(Product(rows=256, columns=128, depth=depth), device, "float16", IDEAL) for depth in (3, 8, 9)]
    assert of[0] == of[1] < of[2]


def test_the_start_of_a_tile_costs_terms_of_its_sum():
    slow = replace(IDEAL, start_depth=1000.0)
    found = product_seconds(Product(rows=1024, columns=128, depth=1000), TOY, "float32", slow)
    assert found == pytest.approx(2 * TILE)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Conv2D", Product(rows=2 * 8 * 8, columns=32, depth=9 * 16)),
        ("Conv2DBackpropInput", Product(rows=2 * 8 * 8, columns=16, depth=9 * 32)),
        ("Conv2DBackpropFilter", Product(rows=32, columns=9 * 16, depth=2 * 8 * 8)),
    ],
)
def test_convolutions_are_products_without_their_matrix_of_patches(kind, expected):
    op = convolution(kind, tensor(2, 8, 8, 16), tensor(3, 3, 16, 32), tensor(2, 8, 8, 32))
    assert product_of(op) == expected
    assert 2 * expected.rows * expected.columns * expected.depth == op_cost(op).flops


def test_groups_of_channels_are_products_of_their_own():
    op = convolution("Conv2D", tensor(2, 8, 8, 16), tensor(3, 3, 4, 32), tensor(2, 8, 8, 32))
    assert product_of(op) == Product(rows=128, columns=8, depth=36, count=4)


def test_an_einsum_is_the_product_that_its_labels_say():
    op = OpSpec(
        type="Einsum",
        inputs=(tensor(2, 5, 3, 7), tensor(2, 6, 3, 7)),
        outputs=(tensor(2, 3, 6, 5),),
        attributes={"equation": "aecd,abcd->acbe"},
    )
    assert product_of(op) == Product(rows=5, columns=6, depth=7, count=6)


def test_winograd_multiplies_thirty_six_times_in_place_of_144():
    """By pieces of 6 x 6: 36 products of 512 pieces x 128 with 128 x 256, of four tiles each, on four multiprocessors.

    In one kernel it is 16 products of 2,048 pieces, which take 16 / 9 of that; so bytes are worth moving.
    """
    images, filters, results = tensor(8, 32, 32, 128), tensor(3, 3, 128, 256), tensor(8, 32, 32, 256)
    op = convolution("Conv2D", images, filters, results)
    pieces = 8 * 8 * 8
    products = 36 * (2 * 256 * 128 * 128 / 1e6)
    transformed = 36 * (pieces * (128 + 256) + 128 * 256)
    moved = 4 * (8 * 32 * 32 * (128 + 256) + 9 * 128 * 256 + 2 * transformed)
    assert transformed_seconds(op, TOY, IDEAL) == pytest.approx(products + moved / 1e12)
    assert seconds(op) == pytest.approx(products + moved / 1e12 + 0.25)


def test_strided_convolutions_and_tensor_cores_have_no_transforms():
    images, filters = tensor(8, 32, 32, 128), tensor(3, 3, 128, 256)
    strided = convolution("Conv2D", images, filters, tensor(8, 16, 16, 256), stride=2)
    plain = convolution("Conv2D", images, filters, tensor(8, 32, 32, 256))
    with_tensor_cores = replace(TOY, peak_flops={"float32": 4e6, "tfloat32": 8e6})
    assert transformed_seconds(strided, TOY) == float("inf")
    assert transformed_seconds(plain, with_tensor_cores) == float("inf")


def test_bytes_go_at_a_share_of_the_bandwidth():
    op = OpSpec(type="Relu", inputs=(tensor(1000),), outputs=(tensor(1000),))
    device = replace(TOY, memory_bandwidth_bytes_per_second=1000.0)
    assert seconds(op, device, constants=replace(IDEAL, bandwidth_share=0.5)) == pytest.approx(8000 / 500 + 0.25)


def test_batch_normalisation_in_training_reads_its_images_twice():
    images, vector = tensor(10, 10, 10, 10), tensor(10)
    op = OpSpec(type="FusedBatchNormV3", inputs=(images, vector, vector), outputs=(images,), attributes={})
    device = replace(TOY, memory_bandwidth_bytes_per_second=1000.0)
    still = replace(op, attributes={"is_training": False})
    assert seconds(op, device) - seconds(still, device) == pytest.approx(10**4 * 4 / 1000)


def test_depthwise_convolutions_get_a_share_of_the_plain_peak_and_pairs_of_short_floats():
    def depthwise(dtype: str) -> OpSpec:
        images = tensor(2, 8, 8, 16, dtype=dtype)
        filters = tensor(3, 3, 16, 1, dtype=dtype)
        return OpSpec(type="DepthwiseConv2dNative", inputs=(images, filters), outputs=(images,))

    volta = replace(TOY, peak_flops={"float32": 4e6, "float16": 32e6}, compute_capability=7.0)
    flops = 2 * 9 * 2 * 8 * 8 * 16
    assert seconds(depthwise("float32"), volta) == pytest.approx(flops / 2e6 + 0.25)
    assert seconds(depthwise("float16"), volta) == pytest.approx(flops / 4e6 + 0.25)


def test_images_of_float32_are_copied_for_tensor_cores():
    """Bug: compiled for Hopper they were, which they are not, and not compiled they were not, which they are."""
    op = convolution("Conv2D", tensor(2, 8, 8, 16), tensor(1, 1, 16, 32), tensor(2, 8, 8, 32))
    ampere = replace(TOY, peak_flops={"float32": 4e6, "tfloat32": 8e6}, compute_capability=8.0)
    copied = 2 * 4 * 2 * 8 * 8 * (16 + 32)
    assert layout_bytes(op, ampere, compiled=True) == copied
    assert layout_bytes(op, ampere, compiled=False) == copied
    hopper = replace(ampere, compute_capability=9.0)
    assert layout_bytes(op, hopper, compiled=True) == 0
    assert layout_bytes(op, hopper, compiled=False) == copied
    assert layout_bytes(op, TOY, compiled=True) == layout_bytes(op, TOY, compiled=False) == 0


def normalisation(dtype: str, *, is_training: bool = True) -> OpSpec:
    images, channels = tensor(2, 8, 8, 16, dtype=dtype), tensor(16)
    return OpSpec(
        type="FusedBatchNormGradV3",
        inputs=(images, images, *[channels] * 4),
        outputs=(images, channels, channels),
        attributes={"is_training": is_training},
    )


def test_16_bit_images_are_copied_to_be_normalised():
    """Bug: ResNet50 in mixed precision on an H100 took 119 ms, not compiled; 70 were predicted."""
    images = 2 * 2 * 8 * 8 * 16  # bytes
    copies = 2 * 3 * images  # two that go in and one that comes out, each read and written
    passes = (2 * 2 + 1) * images  # two over what goes in, one over the result
    volta = replace(TOY, memory_bandwidth_bytes_per_second=1000.0, compute_capability=7.0)
    persistent = Kernels(persistent_normalisation=True)
    assert normalisation_bytes(normalisation("float16"), volta, ONEDNN) == copies + passes
    assert normalisation_bytes(normalisation("bfloat16"), volta, persistent) == copies + passes
    assert normalisation_bytes(normalisation("float16"), volta, persistent) == 0
    assert normalisation_bytes(normalisation("float16", is_training=False), volta, ONEDNN) == 0
    assert normalisation_bytes(normalisation("float32"), volta, ONEDNN) == 0
    assert normalisation_bytes(normalisation("float16"), replace(volta, compute_capability=6.0), ONEDNN) == 0
    known = op_cost(normalisation("float16")).moved_bytes + 2 * images + copies + passes
    assert seconds(normalisation("float16"), volta) == pytest.approx(known / 1000 + 0.25)
    assert seconds(normalisation("float16"), volta, compiled=True) < known / 1500


def test_a_few_integers_are_on_the_host():
    shape = OpSpec(type="AddV2", inputs=(tensor(4, dtype="int32"),) * 2, outputs=(tensor(4, dtype="int32"),))
    assert is_on_host(shape)
    assert seconds(shape) == 0.0
    tokens = OpSpec(type="AddV2", inputs=(tensor(400, dtype="int32"),) * 2, outputs=(tensor(400, dtype="int32"),))
    assert not is_on_host(tokens)


def test_a_fused_chain_takes_its_bytes_and_a_launch():
    device = replace(TOY, memory_bandwidth_bytes_per_second=1000.0)
    assert fused_seconds(10, 8000, 1, device, IDEAL) == pytest.approx(8.25)
    assert fused_seconds(80_000_000, 8000, 2, device, IDEAL) == pytest.approx(20.5)


def test_a_gpu_waits_for_its_host_only_where_ops_are_short():
    assert queued_seconds([1.0, 1.0, 1.0], 0.5) == 3.5
    assert queued_seconds([0.25, 0.25, 4.0, 0.25], 0.5) == 5.75
    assert queued_seconds([0.25] * 4, 0.5) == 2.25
    assert queued_seconds([1.0, 2.0], 0.0) == 3.0


def test_gpus_of_the_catalogue_say_how_many_multiprocessors_they_have():
    for device in catalogue().devices.values():
        assert (device.multiprocessors > 0) == (device.launch_source.startswith("A. Gray")), device.name


SIZES = st.integers(1, 3000)


@settings(max_examples=60)
@given(SIZES, SIZES, SIZES, st.integers(1, 500), st.sampled_from(["float32", "float16"]), st.sampled_from([0, 1, 2]))
def test_a_larger_product_is_never_faster(rows, columns, depth, more, dtype, side):
    device = catalogue().devices["v100-16gb"]
    larger = [rows, columns, depth]
    larger[side] += more
    small = product_seconds(Product(rows=rows, columns=columns, depth=depth), device, dtype)
    large = product_seconds(Product(rows=larger[0], columns=larger[1], depth=larger[2]), device, dtype)
    assert large >= small * (1 - 1e-12)


@settings(max_examples=60)
@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(catalogue().devices)))
def test_no_product_beats_the_peak(rows, columns, depth, name):
    device = catalogue().devices[name]
    if device.multiprocessors:
        found = product_seconds(Product(rows=rows, columns=columns, depth=depth), device, "float32", GPU)
        assert found >= 2 * rows * columns * depth / device.peak_flops_for("float32")
